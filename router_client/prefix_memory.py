"""Ids of prompts hashed before, so that a chat that grows hashes only its new end. Pure.

Token ids stay in this process' memory, for at most `max_bytes` of prompts and ids together.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from events.identity import BlockHasher, pack_tokens, root_parent
from events.ids import ProfileId

MAX_BYTES = 64 << 20
PER_START = 8
"""Prompts remembered that begin with the same block."""
ID_COST_BYTES = 64
"""An id as an object and its place in a list."""
PROMPT_COST_BYTES = 1_024
"""What a prompt costs beside its tokens and ids: itself, its place, and the key of its first block."""

Start = tuple[ProfileId, int, bytes]


@dataclass(slots=True, eq=False)
class _Prompt:
    tokens: bytes
    chain: list[bytes]

    @property
    def cost_bytes(self) -> int:
        return len(self.tokens) + ID_COST_BYTES * len(self.chain) + PROMPT_COST_BYTES


class PrefixMemory:
    """One domain's hasher with a memory. Ids are those of `BlockHasher.chain`, always.

    One bound over everything remembered, the least recently used prompt goes first; a prompt above the bound
    is hashed and not remembered. `held_bytes` never exceeds `max_bytes`.
    """

    def __init__(self, id_key: bytes, *, max_bytes: int = MAX_BYTES) -> None:
        self._hasher = BlockHasher(id_key)
        self._max_bytes = max_bytes
        self._starts: dict[Start, list[_Prompt]] = {}
        self._used: OrderedDict[_Prompt, Start] = OrderedDict()
        self.held_bytes = 0
        self.hashed_blocks = 0

    def ids(self, profile: ProfileId, token_ids: list[int] | bytes, block_tokens: int) -> list[bytes]:
        """Ids of all whole blocks. `token_ids` as numbers or as u32 little endian. Raises IdentityError."""
        tokens = token_ids if isinstance(token_ids, bytes) else pack_tokens(token_ids)
        size = 4 * block_tokens
        whole = len(tokens) // size
        if whole == 0:
            return []
        tokens = tokens[: whole * size]
        start = (profile, block_tokens, tokens[:size])
        shared = 0
        base: _Prompt | None = None
        for prompt in self._starts.get(start, ()):
            common = _common_blocks(prompt.tokens, tokens, size)
            if common > shared:
                shared, base = common, prompt
        chain = base.chain[:shared] if base is not None else []
        parent = chain[-1] if chain else root_parent(profile)
        chain += self._hasher.chain(parent, tokens[shared * size :], block_tokens)
        self.hashed_blocks += whole - shared
        if base is not None:
            self._used.move_to_end(base)
        if base is None or whole > shared:
            if base is not None and shared == len(base.chain):
                self._forget(base)
            self._remember(start, _Prompt(tokens, chain))
        return list(chain)

    def _remember(self, start: Start, prompt: _Prompt) -> None:
        if prompt.cost_bytes > self._max_bytes:
            return
        prompts = self._starts.setdefault(start, [])
        prompts.append(prompt)
        self._used[prompt] = start
        self.held_bytes += prompt.cost_bytes
        if len(prompts) > PER_START:
            self._forget(prompts[0])
        while self.held_bytes > self._max_bytes:
            self._forget(next(iter(self._used)))

    def _forget(self, prompt: _Prompt) -> None:
        start = self._used.pop(prompt)
        prompts = self._starts[start]
        prompts.remove(prompt)
        if not prompts:
            del self._starts[start]
        self.held_bytes -= prompt.cost_bytes


def _common_blocks(left: bytes, right: bytes, size: int) -> int:
    """Leading blocks that two prompts share; a binary search over slices, which compare at memory speed."""
    low, high = 0, min(len(left), len(right)) // size
    while low < high:
        middle = (low + high + 1) >> 1
        if left[: middle * size] == right[: middle * size]:
            low = middle
        else:
            high = middle - 1
    return low
