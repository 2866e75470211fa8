"""A partition of `kv.events` made at random: every event type, holes, repeats and garbage; real bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from events.chain import sha256
from events.ids import CopyState, EvictReason, InvalidateReason, Inventory, Lineage, Tier
from events.kafka.connection import RawRecord
from events.model.part import (
    Ack,
    BlockEvicted,
    BlockInvalidated,
    Cleared,
    CopyRun,
    DomainEvent,
    Drained,
    EngineLoss,
    HolderInventory,
    Orphans,
    ProfileRetired,
    Refused,
    RequestStanding,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
    Statement,
    StreamEvent,
    TierChanged,
    TransferAborted,
    TransferCommitted,
    TransferStarted,
    UnknownEvents,
)
from tests.support.log import HIGH, LOW, StreamBuilder, block, declared, opened, stored

ALIASES = (b"A" * 16, b"B" * 16)
START = opened(Tier.GPU, Tier.CPU)
BLOCKS = tuple(block("random", number) for number in range(24))


@dataclass
class RandomLog:
    """`records(n)` yields n more records with contiguous offsets."""

    rng: random.Random
    topic: str = "kv.events"
    partition: int = 0
    streams: list[StreamBuilder] = field(default_factory=list)
    offset: int = 0
    last: bytes = b""
    transfers: int = 0
    aliases: tuple[bytes, ...] = ALIASES
    """With one of them no id is ever said under two."""

    def __post_init__(self) -> None:
        for number, (worker, epoch) in enumerate((("w0", "e0"), ("w0", "e1"), ("w1", "e2"))):
            registered = sha256(epoch.encode())
            self.streams.append(
                StreamBuilder(
                    worker=f"{worker}-{self.partition}", epoch=epoch, epoch_no=6 + number, prev=registered
                )
            )

    def records(self, count: int) -> Iterator[RawRecord]:
        made = 0
        while made < count:
            for value in self._values():
                if made == count:
                    return
                self.last = value
                yield RawRecord(
                    self.topic,
                    self.partition,
                    self.offset,
                    b"k",
                    value,
                    None,
                    1_700_000_000_000 + self.offset,
                )
                self.offset += 1
                made += 1

    def _values(self) -> list[bytes]:
        rng = self.rng
        builder = rng.choice(self.streams)
        if builder.seq == 0:
            return [builder.seal(START, parts=_profiles()).value]
        dice = rng.random()
        if dice < 0.04:
            return [self.last or b"x"]
        if dice < 0.07:
            return [rng.choice((b"", b"garbage", b'{"v":1}', rng.randbytes(40), b'{"v":9,"worker":"w0"}'))]
        if dice < 0.10:
            builder.burn()
            return [builder.seal(events=[self._stored()]).value]
        if dice < 0.12:
            return [builder.seal(events=[self._stored()]).value.replace(b'"group":0', b'"group":1')]
        if dice < 0.14:
            return [builder.seal(events=[stored(BLOCKS[:1], holder="nowhere")]).value]
        if dice < 0.20:
            return self._snapshot(builder)
        stream_events = self._stream_events() if rng.random() < 0.15 else []
        parts: list[tuple[bytes, list[DomainEvent]]] = [
            (alias, [self._domain_event() for _ in range(rng.randint(1, 4))])
            for alias in self.aliases
            if rng.random() < 0.7
        ]
        return [builder.seal(*stream_events, parts=parts).value]

    def _ids(self) -> tuple[bytes, ...]:
        return tuple(self.rng.sample(BLOCKS, self.rng.randint(1, 8)))

    def _where(self) -> str:
        return self.rng.choice(("gpu", "cpu"))

    def _stored(self) -> DomainEvent:
        rng = self.rng
        return stored(
            self._ids(),
            rng.choice((None, BLOCKS[0])),
            holder=self._where(),
            profile=rng.randint(0, 1),
            lineage=rng.choice(list(Lineage)),
            admitted_after=rng.choice((None, 3, 9)),
            pinned=rng.random() < 0.2,
        )

    def _domain_event(self) -> DomainEvent:
        rng = self.rng
        match rng.randint(0, 13):
            case 0 | 1:
                return BlockEvicted(
                    holder=self._where(),
                    group=0,
                    ids=self._ids(),
                    reason=EvictReason.CAPACITY,
                    certain=rng.random() < 0.8,
                )
            case 2:
                return BlockInvalidated(
                    holder=self._where(),
                    group=0,
                    ids=self._ids(),
                    reason=InvalidateReason.DELETION,
                    request=9,
                )
            case 3:
                return TierChanged(from_holder="gpu", to_holder="cpu", group=0, ids=self._ids())
            case 4:
                self.transfers += 1
                return TransferStarted(
                    transfer=f"t{self.transfers}",
                    source="elsewhere",
                    holder=self._where(),
                    group=0,
                    profile=0,
                    ids=self._ids(),
                )
            case 5:
                return TransferCommitted(transfer=f"t{max(1, self.transfers)}", digest=bytes(32))
            case 6:
                return TransferAborted(transfer=f"t{max(1, self.transfers)}")
            case 7:
                standing = RequestStanding(request=9, removed=rng.randint(0, 3), old_left=rng.randint(0, 1))
                return Ack(requests=(standing,), nonce=rng.choice((None, 12)))
            case 8:
                return Refused(request=10, reason="no_delete_path", cure="restart it")
            case 9 if rng.random() < 0.2:
                return Statement(holder="gpu", group=0, count=999, checksum=bytes(16), source="derived")
            case 10 if rng.random() < 0.2:
                return ProfileRetired(profile=1)
            case 11:
                return declared(rng.randint(0, 1), (rng.choice((100, 7)),))
            case _:
                return self._stored()

    def _stream_events(self) -> list[StreamEvent]:
        rng = self.rng
        return [
            rng.choice(
                (
                    Cleared(holders=("gpu",), unknown_scope=rng.random() < 0.5),
                    EngineLoss(first_missing=4),
                    UnknownEvents(kind="odd\0kind", length=3),
                    Orphans(holder="gpu", orphans=rng.randint(0, 5), unassigned=1),
                    Drained(),
                )
            )
        ]

    def _snapshot(self, builder: StreamBuilder) -> list[bytes]:
        """Begin, a range for each holder, perhaps with a hole, perhaps without an end."""
        rng = self.rng
        name = f"s{builder.seq}"
        values = [builder.seal(SnapshotBegin(snapshot=name, opened=START), parts=_profiles()).value]
        for holder in ("gpu", "cpu"):
            if rng.random() < 0.1:
                continue
            ids = self._ids()
            run = CopyRun(
                profile=0,
                state=rng.choice((CopyState.COMMITTED, CopyState.UNCERTAIN)),
                ids=ids,
                parents=tuple(bytes(16) for _ in ids),
            )
            mark = SnapshotRange(snapshot=name, holder=holder, group=0, low=LOW, high=HIGH)
            values.append(
                builder.seal(mark, parts=[(rng.choice(self.aliases), [SnapshotPart(runs=(run,))])]).value
            )
        if rng.random() < 0.9:
            known = tuple(
                HolderInventory(holder=holder, inventory=Inventory.KNOWN) for holder in ("gpu", "cpu")
            )
            values.append(builder.seal(SnapshotEnd(snapshot=name, inventories=known)).value)
        return values


def _profiles() -> list[tuple[bytes, list[DomainEvent]]]:
    return [(alias, [declared(0, (100,)), declared(1, (7,))]) for alias in ALIASES]
