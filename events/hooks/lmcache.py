"""LMCache's multiprocess servers: the cache-event batches that they send to their coordinator. Pure.

Read in lmcache 0.5.6 (`mp_coordinator/api.py`, `cache_events.py`): JSON `{"batches": [...]}`, by HTTP or as a
record of a Kafka topic. A server stores whole chunks of a model, one object a rank, in its own memory (l1) and
behind it (l2). What an index needs is not all on the wire:

- a chunk's predecessor is not named. Its hash covers it, so it is proven by computing the hash again with each
  candidate; a chunk without a proven one is an orphan;
- a chunk is whole when the objects of all ranks are there;
- an object is there or not, however often it was stored: LMCache keeps one of a key.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal

import msgspec

from events.errors import DecodeError
from events.hooks.engine_event import (
    NO_EXTRA_KEYS,
    BlockRemoved,
    BlockStored,
    EngineBatch,
    EngineEvent,
    EngineHash,
    EngineTier,
    ExtraKeys,
    MalformedEvent,
    UnknownEvent,
)
from events.hooks.engine_wire import FieldError, tokens_of

ChunkHash = Callable[[bytes, list[int]], bytes]
"""(the predecessor's hash, the chunk's token ids) -> the chunk's hash."""

MAX_BATCHES: Final = 4_096
OBJECTS_KEPT: Final = 1 << 20
CANDIDATES_KEPT: Final = 1 << 17
CANDIDATES_TRIED: Final = 256
_UNPROVEN: Final = EngineHash(b"?")
"""The parent of a chunk whose predecessor isn't proven: no hash that is ever held."""
_UNKNOWN_OFFSET: Final = -1
_MEDIA: Final[Mapping[str, EngineTier]] = {
    "dram": EngineTier.CPU,
    "devdax": EngineTier.CPU,
    "gds": EngineTier.DISK,
    "fs": EngineTier.DISK,
}
"""Of l1 those named, of l2 what isn't a file system is remote."""


class _Key(msgspec.Struct):
    chunk_hash_hex: str
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


class _Entry(msgspec.Struct):
    key: _Key
    token_ids: list[int] = []
    token_offset: int = _UNKNOWN_OFFSET


class _Batch(msgspec.Struct):
    incarnation: int
    event_type: str
    tier: str
    backend: str = ""
    entries: list[msgspec.Raw] = []
    ts: float = 0.0


class _Head(msgspec.Struct):
    instance_id: str
    incarnation: int
    seq: int


class _Request(msgspec.Struct):
    batches: list[msgspec.Raw]


_REQUEST = msgspec.json.Decoder(_Request)
_HEAD = msgspec.json.Decoder(_Head)
_BATCH = msgspec.json.Decoder(_Batch)
_ENTRY = msgspec.json.Decoder(_Entry)


@dataclass(frozen=True, slots=True)
class LmcacheBatch:
    """One batch of one server, not yet read. `seq` counts from 1 in each incarnation; `body` holds token ids."""

    instance: str
    incarnation: int
    seq: int
    body: bytes

    def __repr__(self) -> str:
        return f"LmcacheBatch({self.instance!r}, {self.incarnation}, {self.seq}, {len(self.body)} bytes)"


def decode_request(body: bytes) -> tuple[list[LmcacheBatch], int]:
    """(the batches of a request or Kafka record in order, how many others say neither of whom nor which they
    are). Raises DecodeError ("lmcache_request") if it is no such request at all."""
    try:
        request = _REQUEST.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as cause:
        raise DecodeError("lmcache_request", f"{len(body)} bytes") from cause
    if len(request.batches) > MAX_BATCHES:
        raise DecodeError("lmcache_request", f"{len(request.batches)} batches")
    found: list[LmcacheBatch] = []
    for raw in request.batches:
        try:
            head = _HEAD.decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            continue
        if head.instance_id and head.incarnation >= 0 and 1 <= head.seq < 1 << 62:
            found.append(LmcacheBatch(head.instance_id, head.incarnation, head.seq, bytes(raw)))
    return found, len(request.batches) - len(found)


def blake3_chunk_hash() -> tuple[ChunkHash, bytes]:
    """LMCache's default chunk hash, and what stands for the predecessor of a first chunk. Raises ImportError
    without the extra `lmcache`."""
    from blake3 import blake3

    def chunk_hash(before: bytes, tokens: list[int]) -> bytes:
        return blake3(before + struct.pack(f">{len(tokens)}I", *tokens)).digest()

    return chunk_hash, chunk_hash(bytes(8), [0])


Place = tuple[EngineTier, EngineHash, int]
"""A chunk in a tier: its name here, and the group of its object."""


class LmcacheReader:
    """Reads one server's batches for one model, in their order.

    It keeps which objects there are, at most `OBJECTS_KEPT` chunks, and the hashes of the last
    `CANDIDATES_KEPT` chunks.
    """

    def __init__(self, model: str, chunk_hash: ChunkHash, first: bytes) -> None:
        self._model = model
        self._chunk_hash = chunk_hash
        self._first = first
        self._incarnation = self._due = -1
        self._objects: dict[Place, dict[str, set[int]]] = {}
        self._ends: dict[tuple[str, int], OrderedDict[bytes, None]] = {}
        self._ends_order: OrderedDict[tuple[str, int, bytes], None] = OrderedDict()
        self.unproven = 0

    def decode(self, engine_seq: int, body: bytes) -> EngineBatch:
        """One batch in an engine's words. Raises DecodeError ("engine_payload") if it is none."""
        try:
            batch = _BATCH.decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as cause:
            raise DecodeError("engine_payload", f"{len(body)} bytes are no batch") from cause
        if engine_seq != self._due or batch.incarnation != self._incarnation:
            # Another life, or something is missing: what was there may not be, and must be told again.
            self._objects.clear()
        self._due, self._incarnation = engine_seq + 1, batch.incarnation
        match batch.event_type:
            case "store" | "delete":
                events = tuple(self._changes(batch, batch.event_type))
            case "access" | "config":
                events = ()
            case kind:
                events = (UnknownEvent(kind[:64], len(body)),)
        digest = blake2b(body, digest_size=32).digest()
        return EngineBatch(engine_seq, None, batch.ts or None, events, digest)

    def _changes(self, batch: _Batch, kind: Literal["store", "delete"]) -> Iterator[EngineEvent]:
        tier = _tier(batch)
        for raw in batch.entries:
            try:
                entry = _ENTRY.decode(raw)
                if entry.key.model_name != self._model:
                    continue
                name, digest = _name(entry.key)
                if tier is EngineTier.UNKNOWN:
                    medium = f"{batch.tier}/{batch.backend}"
                    removed = BlockRemoved((name,), tier, medium)
                    yield removed if kind == "delete" else BlockStored((name,), None, b"", 0, tier, medium)
                elif kind == "store":
                    yield from self._stored(tier, batch.backend, entry, name, digest)
                else:
                    yield from self._deleted(tier, batch.backend, entry.key, name)
            except FieldError as error:
                yield MalformedEvent(kind, str(error))
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
                yield MalformedEvent(kind, "entry")

    def _stored(
        self, tier: EngineTier, backend: str, entry: _Entry, name: EngineHash, digest: bytes
    ) -> Iterator[EngineEvent]:
        key = entry.key
        ranks, rank = _ranks(key)
        tokens = tokens_of(entry.token_ids)
        place = (tier, name, key.object_group_id)
        if place not in self._objects and len(self._objects) >= OBJECTS_KEPT:
            raise FieldError("too_many_objects")
        backends = self._objects.setdefault(place, {})
        before = any(len(held) == ranks for held in backends.values())
        backends.setdefault(backend, set()).add(rank)
        if before or len(backends[backend]) < ranks:
            return
        parent = self._parent(entry, digest)
        first = ExtraKeys(salt=key.cache_salt) if key.cache_salt else NO_EXTRA_KEYS
        yield BlockStored(
            hashes=(name,),
            parent=parent,
            tokens=tokens,
            block_size=len(entry.token_ids),
            tier=tier,
            medium=tier.value,
            extra_keys=(first if parent is None else NO_EXTRA_KEYS,),
            group=key.object_group_id,
        )

    def _deleted(self, tier: EngineTier, backend: str, key: _Key, name: EngineHash) -> Iterator[EngineEvent]:
        ranks, rank = _ranks(key)
        place = (tier, name, key.object_group_id)
        backends = self._objects.get(place, {})
        before = any(len(held) == ranks for held in backends.values())
        held = backends.get(backend, set())
        held.discard(rank)
        if not held:
            backends.pop(backend, None)
        if not backends:
            self._objects.pop(place, None)
        if before and any(len(other) == ranks for other in backends.values()):
            return
        if before or not backends:
            yield BlockRemoved((name,), tier, tier.value, key.object_group_id)

    def _parent(self, entry: _Entry, digest: bytes) -> EngineHash | None:
        """The predecessor's name, None for a first chunk: as far as the chunk's own hash proves it."""
        salt, offset, tokens = entry.key.cache_salt, entry.token_offset, entry.token_ids
        if not tokens:
            return _UNPROVEN
        proven: EngineHash | None = _UNPROVEN
        if offset == 0:
            if self._chunk_hash(self._first, tokens) == digest:
                proven = None
        elif offset > 0:
            for tried, candidate in enumerate(reversed(self._ends.get((salt, offset), {}))):
                if tried >= CANDIDATES_TRIED:
                    break
                if self._chunk_hash(candidate, tokens) == digest:
                    proven = _named(candidate, salt)
                    break
        if proven is _UNPROVEN:
            self.unproven += 1
        else:
            self._remember(salt, offset + len(tokens), digest)
        return proven

    def _remember(self, salt: str, end: int, digest: bytes) -> None:
        ends = self._ends.setdefault((salt, end), OrderedDict())
        ends[digest] = None
        ends.move_to_end(digest)
        order = self._ends_order
        order[salt, end, digest] = None
        order.move_to_end((salt, end, digest))
        if len(order) > CANDIDATES_KEPT:
            (old_salt, old_end, old), _ = order.popitem(last=False)
            rest = self._ends[old_salt, old_end]
            rest.pop(old, None)
            if not rest:
                del self._ends[old_salt, old_end]


def _tier(batch: _Batch) -> EngineTier:
    if batch.tier not in ("l1", "l2") or not batch.backend:
        return EngineTier.UNKNOWN
    known = _MEDIA.get(batch.backend, EngineTier.UNKNOWN)
    if known is EngineTier.UNKNOWN and batch.tier == "l2":
        return EngineTier.REMOTE
    return known


def _name(key: _Key) -> tuple[EngineHash, bytes]:
    try:
        digest = bytes.fromhex(key.chunk_hash_hex)
    except ValueError as cause:
        raise FieldError("chunk_hash_hex") from cause
    if not 0 < len(digest) <= 48:
        raise FieldError("chunk_hash_hex")
    if not 0 <= key.object_group_id <= 1_023:
        raise FieldError("object_group_id")
    return _named(digest, key.cache_salt), digest


def _named(digest: bytes, salt: str) -> EngineHash:
    """LMCache's hash leaves the salt out; two tenants' chunks are two."""
    return EngineHash(digest + blake2b(salt.encode(), digest_size=16).digest() if salt else digest)


def _ranks(key: _Key) -> tuple[int, int]:
    """(ranks whose objects make a chunk, the rank of this one)."""
    ranks, rank = key.kv_rank >> 24 & 0xFF, key.kv_rank >> 16 & 0xFF
    if not 0 <= key.kv_rank < 1 << 32 or not ranks or rank >= ranks:
        raise FieldError("kv_rank")
    return ranks, rank
