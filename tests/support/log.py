"""Hand-made streams and control logs: real bytes through the real codec, for tests of whoever reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from events.chain import sha256
from events.codec import EncodedBatch, decode_batch, encode_batch, encode_control
from events.ids import Capability, GroupKind, Inventory, Role, Tier
from events.model.batch import ControlPosition, EventBatch
from events.model.control import ControlBody, Genesis, Granted, Registered
from events.model.part import (
    BlockStored,
    DomainEvent,
    Group,
    HolderDeclared,
    HolderInventory,
    Opened,
    ProfileDeclared,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotRange,
    StreamEvent,
)
from events.model.profile import ContentProfile
from events.signing import Signer

ALIAS = b"A" * 16
LOW, HIGH = bytes(16), b"\xff" * 16
PROFILE = ContentProfile(
    model="tiny",
    revision="r1",
    tokenizer_revision="t1",
    attention="full",
    position_encoding="rope",
    kv_dtype="fp16",
    block_tokens=16,
)


def block(*path: object) -> bytes:
    """A stable 16-byte id for a name."""
    return hashlib.sha256(repr(path).encode()).digest()[:16]


def opened(*tiers: Tier, groups: Sequence[Group] = (), inventory: Inventory = Inventory.EMPTY) -> Opened:
    """Holders named after their tiers, one full-attention group of 16 tokens unless told otherwise."""
    used = tuple(groups) or (Group(index=0, kind=GroupKind.FULL, block_tokens=16),)
    return Opened(
        engine_life="life-1",
        engine="test",
        engine_version="1",
        removal=Capability.EVICT_BLOCKS,
        admission_known=True,
        holders=tuple(
            HolderDeclared(name=tier.value, tier=tier, groups=used, inventory=inventory)
            for tier in (tiers or (Tier.GPU,))
        ),
    )


def declared(number: int = 0, block_bytes: tuple[int, ...] = (100,)) -> ProfileDeclared:
    return ProfileDeclared(profile=number, content=PROFILE, block_bytes=block_bytes)


def stored(ids: Sequence[bytes], parent: bytes | None = None, **more: object) -> BlockStored:
    fields: dict[str, object] = {"holder": "gpu", "group": 0, "profile": 0, "parent": parent} | more
    return BlockStored(ids=tuple(ids), **fields)  # type: ignore[arg-type]


@dataclass
class StreamBuilder:
    """Seals records the way a hook does; `sent` holds the raw values in order."""

    worker: str = "w0"
    rank: int = 0
    epoch: str = "e1"
    epoch_no: int = 5
    prev: bytes = bytes(32)
    seq: int = 0
    control: ControlPosition = field(default_factory=lambda: ControlPosition(offset=5, hash=bytes(32)))
    sent: list[EncodedBatch] = field(default_factory=list)

    def seal(
        self,
        *stream_events: StreamEvent,
        events: Iterable[DomainEvent] = (),
        parts: Sequence[tuple[bytes, Sequence[DomainEvent]]] = (),
        seq: int | None = None,
        prev: bytes | None = None,
    ) -> EncodedBatch:
        """The next record; `events` go to the part of ALIAS."""
        listed = list(parts)
        own = list(events)
        if own:
            listed.append((ALIAS, own))
        record = encode_batch(
            worker=self.worker,
            rank=self.rank,
            epoch=self.epoch,
            epoch_no=self.epoch_no,
            seq=self.seq if seq is None else seq,
            prev=self.prev if prev is None else prev,
            control=self.control,
            stream_events=stream_events,
            parts=listed,
        )
        self.seq, self.prev = record.seq + 1, record.header_sha256
        self.sent.append(record)
        return record

    def batch(self, *stream_events: StreamEvent, **more: object) -> EventBatch:
        return decode_batch(self.seal(*stream_events, **more).value)  # type: ignore[arg-type]

    def burn(self) -> None:
        """A number that the hook took and never sent."""
        self.seq += 1

    def snapshot(
        self,
        events: Sequence[DomainEvent],
        *,
        start: Opened | None = None,
        inventory: Inventory = Inventory.KNOWN,
        name: str = "s1",
    ) -> list[EventBatch]:
        """Begin, one range for gpu/0 that holds `events`, end."""
        begin = self.batch(
            SnapshotBegin(snapshot=name, opened=start or opened()), events=[declared()] if not start else []
        )
        middle = self.batch(
            SnapshotRange(snapshot=name, holder="gpu", group=0, low=LOW, high=HIGH), events=events
        )
        end = self.batch(
            SnapshotEnd(snapshot=name, inventories=(HolderInventory(holder="gpu", inventory=inventory),))
        )
        return [begin, middle, end]


@dataclass
class ControlLog:
    """A `kv.control` in memory: genesis and grants are its first records."""

    log: str = "log-test"
    partitions: int = 4
    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    signers: dict[Role, Signer] = field(default_factory=dict)
    secret: bytes = b""
    _said: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        for role in Role:
            self.signers[role] = Signer.from_seed(sha256(self.secret + role.value.encode()))
        operator = self.signers[Role.OPERATOR]
        self.append(
            Genesis(log=self.log, operator_key=operator.public_key, partitions=self.partitions), Role.OPERATOR
        )
        for role in Role:
            if role is not Role.OPERATOR:
                self.append(
                    Granted(public_key=self.signers[role].public_key, roles=(role,), label=role.value),
                    Role.OPERATOR,
                )

    def append(self, body: ControlBody, role: Role, *, signer: Signer | None = None, **more: object) -> int:
        """Signs and appends; returns the record's offset. Who says something again says it a millisecond later."""
        key = signer or self.signers[role]
        given: dict[str, Any] = {"log": self.log, "signer": key.id, "role": role, **more}
        written_ms = 1
        value, line = encode_control(body, written_ms=written_ms, **given)
        while value in self._said:
            written_ms += 1
            value, line = encode_control(body, written_ms=written_ms, **given)
        self._said.add(value)
        self.records.append((value, key.sign(line)))
        return len(self.records) - 1

    def register(self, worker: str = "w0", rank: int = 0, epoch: str = "e1", life: str = "life-1") -> int:
        body = Registered(
            worker=worker,
            rank=rank,
            epoch=epoch,
            engine_life=life,
            public_key=Signer.from_seed(sha256(epoch.encode())).public_key,
            partition=0,
        )
        return self.append(body, Role.ENROLMENT)
