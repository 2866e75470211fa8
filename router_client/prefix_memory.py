"""Ids of prompts hashed before, so that a chat that grows hashes only its new end. Pure.

Token ids stay in this process' memory, for at most `max_prompts` prompts.
"""

from __future__ import annotations

from collections import OrderedDict

from events.identity import BlockHasher, pack_tokens, root_parent
from events.ids import ProfileId

MAX_PROMPTS = 1_000
PER_START = 8
"""Prompts remembered that begin with the same block."""


class PrefixMemory:
    """One domain's hasher with a memory. Ids are those of `BlockHasher.chain`, always."""

    def __init__(self, id_key: bytes, *, max_prompts: int = MAX_PROMPTS) -> None:
        self._hasher = BlockHasher(id_key)
        self._max_starts = max_prompts
        self._starts: OrderedDict[tuple[ProfileId, int, bytes], list[tuple[bytes, list[bytes]]]]
        self._starts = OrderedDict()
        self.hashed_blocks = 0

    def ids(self, profile: ProfileId, token_ids: list[int] | bytes, block_tokens: int) -> list[bytes]:
        """Ids of all whole blocks. `token_ids` as numbers or as u32 little endian. Raises IdentityError."""
        tokens = token_ids if isinstance(token_ids, bytes) else pack_tokens(token_ids)
        size = 4 * block_tokens
        whole = len(tokens) // size
        if whole == 0:
            return []
        tokens = tokens[: whole * size]
        key = (profile, block_tokens, tokens[:size])
        known = self._starts.get(key, [])
        shared, base = 0, None
        for prompt in known:
            common = _common_blocks(prompt[0], tokens, size)
            if common > shared:
                shared, base = common, prompt
        chain = base[1][:shared] if base is not None else []
        parent = chain[-1] if chain else root_parent(profile)
        chain += self._hasher.chain(parent, tokens[shared * size :], block_tokens)
        self.hashed_blocks += whole - shared
        if base is None or whole > shared:
            grown = [prompt for prompt in known if not (prompt is base and shared == len(prompt[1]))]
            self._starts[key] = [(tokens, chain), *grown][:PER_START]
        self._starts.move_to_end(key)
        while len(self._starts) > self._max_starts:
            self._starts.popitem(last=False)
        return list(chain)


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
