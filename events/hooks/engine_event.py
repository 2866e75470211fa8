"""What an engine says about its cache, independent of the wire form it said it in.

Decoders (`events.hooks.vllm`, `events.hooks.sglang`) make these; `EngineStream` turns them into the log's own
events. Nothing here goes into the log: engine hashes and tokens stay in the hook's process. Token bytes and
salts are left out of every `repr`, so that a logged object gives nothing away.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

EngineHash = NewType("EngineHash", bytes)
"""An engine's own block hash, opaque. An engine that sends integers (of any msgpack width) is held as the
8 big-endian bytes of the unsigned 64-bit value, one that sends digests as the digest itself."""

TOKEN_SIZE_BYTES = 4


class EngineTier(StrEnum):
    """Where an engine says that a block lies; `UNKNOWN` also stands for a medium left out."""

    GPU = "gpu"
    CPU = "cpu"
    DISK = "disk"
    REMOTE = "remote"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ExtraKeys:
    """What went into one block's hash beside its tokens.

    `mm` is (identifier, offset of the item relative to this block's start, may be negative).
    `unrecognised` means that something in the entry has no meaning here: the block must get no id.
    """

    lora: str | None = None
    mm: tuple[tuple[str, int], ...] = ()
    salt: str | None = field(default=None, repr=False)
    prompt_embeds: bytes | None = field(default=None, repr=False)
    unrecognised: bool = False


NO_EXTRA_KEYS = ExtraKeys()


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks entered the cache.

    `tokens` is the u32 little-endian token ids back to back. `extra_keys` has one entry a hash, or is
    None when the engine sent none. `parent` None means a chain's root only if `aligned`.
    """

    hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    tokens: bytes = field(repr=False)
    block_size: int
    tier: EngineTier
    medium: str | None = None
    lora_name: str | None = None
    lora_id: int | None = None
    extra_keys: tuple[ExtraKeys, ...] | None = None
    group: int | None = None
    spec_kind: str | None = None
    window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session: str | None = None

    @property
    def token_count(self) -> int:
        """Number of token ids in `tokens`."""
        return len(self.tokens) // TOKEN_SIZE_BYTES

    @property
    def aligned(self) -> bool:
        """True if hash i covers exactly the i-th run of `block_size` tokens.

        False for sparse stores (sliding windows send the hashes of the last blocks but all tokens) and
        for the placeholders of offloading connectors: their hashes must not be zipped with tokens.
        """
        return self.block_size > 0 and len(self.hashes) * self.block_size == self.token_count

    @property
    def root(self) -> bool:
        """True if the first hash is surely the first block of a prompt."""
        return self.parent is None and self.aligned

    def block_tokens(self, index: int) -> bytes:
        """Token bytes of block `index`; only meaningful if `aligned`."""
        size = self.block_size * TOKEN_SIZE_BYTES
        return self.tokens[index * size : (index + 1) * size]


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One physical copy of each hash left the cache; a duplicate may remain."""

    hashes: tuple[EngineHash, ...]
    tier: EngineTier
    medium: str | None = None
    group: int | None = None
    locality: str | None = None
    ownership: str | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The engine's own prefix cache was reset: `tiers` are empty. It says nothing of the others."""

    tiers: frozenset[EngineTier] = frozenset({EngineTier.GPU})


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """A kind that this version can't read; `length` is its size on the wire in bytes."""

    kind: str
    length: int


@dataclass(frozen=True, slots=True)
class MalformedEvent:
    """One event of a known kind whose field `reason` can't be used; the rest of its batch stands.

    What it stored or removed is lost, so the reader treats it like a hole in the stream.
    """

    kind: str
    reason: str


EngineEvent = BlockStored | BlockRemoved | AllBlocksCleared | UnknownEvent | MalformedEvent


@dataclass(frozen=True, slots=True)
class EngineBatch:
    """One message of an engine: the events of one scheduler step, in order.

    `rank` is the data-parallel rank if the engine says it; `ts` the engine's own wall clock in seconds
    (information only: no rule may rest on it); `raw_sha256` the digest of the payload as received.
    """

    engine_seq: int
    rank: int | None
    ts: float | None
    events: tuple[EngineEvent, ...]
    raw_sha256: bytes
