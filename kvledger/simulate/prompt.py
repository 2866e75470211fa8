"""A trace request as an engine sees it: tokens, blocks and the engine's own chained hashes.

Content is made from ids. Token j of block n is `n + (j mod 16) * 2^27`: equal ids give equal tokens,
different ids different ones, order matters, and it is nothing like text. Compact form (the default): one
trace id becomes ONE engine block and all token counts shrink in proportion, so that a trace of 512-token ids
keeps its hits and evictions at 1/32 of the work. Expanded form: one trace id becomes as many engine blocks as
it has tokens for (32 for 512 and 16) and counts are the trace's own.

An engine hash here is a 64-bit number chained over parent and content, rooted in the request's cache salt,
equal on every simulated engine, as with vLLM's fixed default seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from events.hooks.engine_event import TOKEN_SIZE_BYTES, EngineHash
from kvledger.simulate.trace import TraceRequest

DEFAULT_BLOCK_SIZE = 16
_MASK = (1 << 64) - 1
_CONTENT_BITS = 27
_OUTPUT_BASE = 1 << (_CONTENT_BITS - 1)
MAX_CONTENT = _OUTPUT_BASE


def engine_hash(key: int) -> EngineHash:
    """The 8 big-endian bytes of a block key, as decoders hold integer hashes."""
    return EngineHash(key.to_bytes(8, "big"))


@lru_cache(maxsize=4096)
def root_key(salt: str | None) -> int:
    """What the first block of a prompt with this cache salt is chained to."""
    return int.from_bytes(
        blake2b((salt or "").encode(), digest_size=8, person=b"kvl-sim-root").digest(), "big"
    )


class TokenMaker:
    """Token bytes (u32 little-endian) of blocks of `block_size` tokens; keeps nothing but its masks."""

    def __init__(self, block_size: int) -> None:
        self._ones = sum(1 << (32 * j) for j in range(block_size))
        self._ramp = sum((j % 16) << (32 * j + _CONTENT_BITS) for j in range(block_size))
        self._size = block_size * TOKEN_SIZE_BYTES

    def block(self, content: int) -> bytes:
        """All tokens of the block with this content; its first n tokens are the first 4 n bytes."""
        return (content * self._ones + self._ramp).to_bytes(self._size, "little")


token_maker = lru_cache(maxsize=16)(TokenMaker)


@dataclass(frozen=True, slots=True)
class OutputBlock:
    """A block that decoding fills: its key and its tokens."""

    key: int
    tokens: bytes


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request planned for engines of one block size.

    `keys` and `contents` are those of the prompt's whole blocks, in order; `tail_tokens` more tokens begin
    the block with content `tail_content`. `tokens` and `output_tokens` are counts in the engine's scale.
    """

    tenant: str
    salt: str | None
    block_size: int
    contents: tuple[int, ...]
    keys: tuple[int, ...]
    tail_content: int
    tail_tokens: int
    output_tokens: int
    output_contents: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Prompt length in tokens."""
        return len(self.keys) * self.block_size + self.tail_tokens

    def token_bytes(self) -> bytes:
        """The whole prompt as u32 little-endian token ids, as a router sends it."""
        make = token_maker(self.block_size).block
        whole = b"".join([make(content) for content in self.contents])
        return whole + make(self.tail_content)[: self.tail_tokens * TOKEN_SIZE_BYTES]

    def token_ids(self) -> list[int]:
        """The whole prompt as numbers."""
        return list(memoryview(self.token_bytes()).cast("I"))

    def output_blocks(self) -> Iterator[OutputBlock]:
        """Blocks that decoding completes, in order, lazily.

        The last sampled token is never computed, so `output_tokens - 1` tokens count.
        """
        make = token_maker(self.block_size).block
        parent = self.keys[-1] if self.keys else root_key(self.salt)
        seed = hash((parent, self.tail_content, self.tail_tokens, self.output_tokens))
        for index in range((self.tail_tokens + max(0, self.output_tokens - 1)) // self.block_size):
            if index < len(self.output_contents):
                content = self.output_contents[index]
                parent = hash((parent, content)) & _MASK
                yield OutputBlock(parent, make(content))
                continue
            content = _OUTPUT_BASE | (hash((seed, index)) & (_OUTPUT_BASE - 1))
            kept = self.tail_tokens if index == 0 else 0
            tokens = make(content)
            if kept:
                tokens = (
                    make(self.tail_content)[: kept * TOKEN_SIZE_BYTES] + tokens[kept * TOKEN_SIZE_BYTES :]
                )
                parent = hash((parent, self.tail_content, kept, content)) & _MASK
            else:
                parent = hash((parent, content)) & _MASK
            yield OutputBlock(parent, tokens)


class PromptPlanner:
    """Plans requests for one block size; holds nothing of a request."""

    def __init__(self, *, block_size: int = DEFAULT_BLOCK_SIZE, expand: bool = False) -> None:
        if block_size < 1:
            raise ValueError("block_size must be at least 1 token")
        self.block_size = block_size
        self._expand = expand

    def plan(self, request: TraceRequest, salt: str | None) -> Prompt:
        """The request as the engine sees it; `ValueError` if ids are too large or blocks don't divide."""
        size = self.block_size
        unit = request.block_tokens
        if not self._expand:
            whole_ids, rest = divmod(request.input_tokens, unit)
            tail = min(size - 1, max(1, round(rest * size / unit))) if rest and size > 1 else 0
            tokens, per_id = whole_ids * size + tail, 1
            output_tokens = max(1, round(request.output_tokens * size / unit))
        elif unit % size:
            raise ValueError(f"blocks of {size} tokens don't divide trace ids of {unit}")
        else:
            tokens, per_id, output_tokens = request.input_tokens, unit // size, max(1, request.output_tokens)
        ids = request.prefix_ids + request.output_ids
        if ids and (max(ids) + 1) * per_id > MAX_CONTENT:
            raise ValueError(f"trace id {max(ids)} is too large: {MAX_CONTENT // per_id} ids at most")
        contents = ids if per_id == 1 else tuple([i * per_id + k for i in ids for k in range(per_id)])
        whole, tail = divmod(tokens, size)
        parent = root_key(salt)
        keys: list[int] = []
        for content in contents[:whole]:
            parent = hash((parent, content)) & _MASK
            keys.append(parent)
        if whole < len(contents):
            tail_content = contents[whole]
        else:
            tail_content = _OUTPUT_BASE | (
                hash((parent, round(request.arrival_s * 1000))) & (_OUTPUT_BASE - 1)
            )
        return Prompt(
            request.tenant,
            salt,
            size,
            contents[:whole],
            tuple(keys),
            tail_content,
            tail,
            output_tokens,
            contents[whole:] if request.output_ids else (),
        )
