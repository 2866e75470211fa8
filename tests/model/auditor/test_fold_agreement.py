"""Two folds written apart agree: same copies, same state of the stream, on any legal stream and its holes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from auditor.fold import StreamFold
from auditor.record import StreamRecord, UnreadableRecord, read_record
from events.chain import MODULUS, transfer_digest
from events.codec import BatchDecodeError, decode_batch
from events.fold.apply import apply, apply_undecodable
from events.fold.state import StreamState
from events.ids import (
    CopyState,
    EvictReason,
    GroupKind,
    InvalidateReason,
    Inventory,
    Lineage,
    StreamKey,
    Tier,
)
from events.model.batch import ControlPosition
from events.model.part import (
    BlockEvicted,
    BlockInvalidated,
    Cleared,
    Closed,
    CopyRun,
    DomainEvent,
    Drained,
    EngineLoss,
    Group,
    HolderInventory,
    Orphans,
    ProfileRetired,
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
)
from tests.support.log import HIGH, LOW, StreamBuilder, block, declared, opened, stored

ALIASES = (b"A" * 16, b"B" * 16)
BLOCKS = {alias: tuple(block(alias, number) for number in range(8)) for alias in ALIASES}
HOLDERS = ("gpu", "cpu")
START = opened(Tier.GPU, Tier.CPU)
MIDDLE = b"\x80" + bytes(15)

ids = st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True)
provenance = st.none() | st.integers(0, 20)
KINDS = (
    *("store", "store", "store", "evict", "invalidate", "tier", "start", "commit", "abort"),
    *("clear", "loss", "orphans", "snapshot", "drain", "statement", "close"),
    *("lost", "twice", "garbled", "broken", "equivocate", "mismatch"),
    *("start", "commit", "expire", "retire", "inspect", "nothing", "stranger", "redeclare", "undeclared"),
)
acts = st.tuples(st.sampled_from(KINDS), st.integers(0, 1), st.integers(0, 1), ids, provenance, st.booleans())


class Both:
    """One stream under both folds; every record is real bytes through the real codec."""

    INSTALLED = 20  # above every age that is claimed

    def __init__(self) -> None:
        self.builder = StreamBuilder()
        self.builder.control = ControlPosition(offset=self.INSTALLED, hash=bytes(32))
        self.index = StreamState(StreamKey("w0", 0, "e1"), 5)
        self.audit = StreamFold(StreamKey("w0", 0, "e1"), 5)
        self.open: list[tuple[str, bytes]] = []
        self.last = b""
        self.feed(self.builder.seal(START, parts=[(a, [declared(), declared(1)]) for a in ALIASES]).value)

    def feed(self, value: bytes) -> None:
        self.last = value
        try:
            apply(self.index, decode_batch(value))
        except BatchDecodeError as error:
            if error.stream is not None and error.seq is not None:
                apply_undecodable(self.index, error.seq, error.reason)
        record = read_record(0, 0, value, None, lambda _: None)
        if isinstance(record, StreamRecord):
            self.audit.apply(record)
        else:
            assert isinstance(record, UnreadableRecord)
            self.audit.apply_unreadable(record.seq or 0, record.reason)

    def say(
        self, *stream_events: StreamEvent, alias: bytes = b"", events: Sequence[DomainEvent] = ()
    ) -> None:
        self.feed(self.builder.seal(*stream_events, parts=[(alias, events)] if events else []).value)

    def statement(self, alias: bytes, holder: str, off: int) -> Statement:
        held = [
            b
            for b, (_, a) in self.index.copies.get((holder, 0), {}).items()
            if a.alias == alias and a.state is not CopyState.INVALID
        ]
        total = (sum(int.from_bytes(b, "big") for b in held) + off) % MODULUS
        return Statement(
            holder=holder, group=0, count=len(held), checksum=total.to_bytes(16, "big"), source="pool"
        )

    def act(self, what: str, at: int, which: int, picked: list[int], after: int | None, flag: bool) -> None:
        holder, alias = HOLDERS[at], ALIASES[which]
        blocks = tuple(BLOCKS[alias][number] for number in picked)
        match what:
            case "store":
                event = stored(blocks, holder=holder, admitted_after=after, lineage=Lineage.PREFILL)
                self.say(alias=alias, events=[event])
            case "evict":
                gone = BlockEvicted(
                    holder=holder, group=0, ids=blocks, reason=EvictReason.CAPACITY, certain=flag
                )
                self.say(alias=alias, events=[gone])
            case "invalidate":
                invalid = BlockInvalidated(
                    holder=holder, group=0, ids=blocks, reason=InvalidateReason.DELETION, request=9
                )
                self.say(alias=alias, events=[invalid])
            case "tier":
                moved = TierChanged(from_holder=holder, to_holder=HOLDERS[1 - at], group=0, ids=blocks)
                self.say(alias=alias, events=[moved])
            case "start":
                name = f"t{self.builder.seq}"
                self.open.append((name, alias))
                started = TransferStarted(
                    transfer=name,
                    source="x",
                    holder=holder,
                    group=0,
                    profile=0,
                    ids=blocks,
                    admitted_after=after,
                )
                self.say(alias=alias, events=[started])
            case "commit" | "abort":
                if self.open:
                    name, alias = self.open.pop()
                    landed = [
                        one
                        for table in self.index.copies.values()
                        for one, (_, a) in table.items()
                        if a.transfer == name and a.state is CopyState.PENDING
                    ]
                    ended = TransferCommitted(
                        transfer=name, digest=transfer_digest(landed) if flag else bytes(32)
                    )
                    self.say(
                        alias=alias, events=[ended if what == "commit" else TransferAborted(transfer=name)]
                    )
            case "clear":
                self.say(Cleared(holders=(holder,), unknown_scope=flag))
            case "loss":
                self.say(EngineLoss(first_missing=3))
            case "orphans":
                self.say(Orphans(holder=holder, orphans=1, unassigned=0))
            case "snapshot":
                self.snapshot(blocks, alias, after, flag)
            case "inspect":
                self.snapshot(blocks, alias, after, flag, source="pool")
            case "expire":
                gone = BlockEvicted(holder=holder, group=0, ids=blocks, reason=EvictReason.EXPIRED)
                self.say(alias=alias, events=[gone])
            case "retire":
                self.say(alias=alias, events=[ProfileRetired(profile=1)])
            case "nothing":
                self.say(alias=alias, events=[stored((), holder=holder)])
            case "stranger":
                where = "nowhere" if flag else holder
                self.say(alias=alias, events=[stored(blocks, holder=where, group=7)])
            case "undeclared":
                self.snapshot(blocks, alias, after, True, profile=9)
            case "redeclare":
                changed = opened(
                    Tier.GPU, Tier.CPU, groups=[Group(index=0, kind=GroupKind.FULL, block_tokens=32)]
                )
                self.say(SnapshotBegin(snapshot="other", opened=changed))
            case "lost":
                self.builder.burn()
            case "twice":
                self.feed(self.last)
            case "garbled":
                value = self.builder.seal(parts=[(alias, [stored(blocks, holder=holder)])]).value
                self.feed(value.replace(b'"holder"', b'"golder"'))
            case "broken":
                self.feed(self.builder.seal(prev=bytes(32)).value)
            case "equivocate":
                seq, prev = self.builder.seq, self.builder.prev
                other = StreamBuilder(seq=seq - 1, prev=prev)
                self.feed(other.seal(Drained()).value)
            case "drain":
                self.say(Drained())
            case "statement" | "mismatch":
                off = int(what == "mismatch")
                self.say(alias=alias, events=[self.statement(alias, holder, off)])
            case _:
                self.say(Closed(engine_ended=flag))

    def snapshot(
        self,
        blocks: tuple[bytes, ...],
        alias: bytes,
        after: int | None,
        whole: bool,
        *,
        profile: int = 0,
        source: Literal["pool"] | None = None,
    ) -> None:
        """Both holders in two ranges each; not `whole`: the last range is left out."""
        name = f"s{self.builder.seq}"
        begin = SnapshotBegin(snapshot=name, opened=START, source=source)
        self.feed(self.builder.seal(begin, parts=[(a, [declared()]) for a in ALIASES]).value)
        states = (CopyState.COMMITTED, CopyState.UNCERTAIN, CopyState.INVALID, CopyState.PENDING)
        state = states[len(blocks) % 4] if source else CopyState.COMMITTED
        bounds = [(LOW, MIDDLE), ((int.from_bytes(MIDDLE, "big") + 1).to_bytes(16, "big"), HIGH)]
        marks = [(holder, low, high) for holder in HOLDERS for low, high in bounds]
        for holder, low, high in marks if whole else marks[:-1]:
            inside = tuple(b for b in blocks if low <= b <= high)
            run = CopyRun(
                profile=profile,
                state=state,
                admitted_after=after,
                transfer=f"t{self.builder.seq}" if state is CopyState.PENDING else None,
                ids=inside,
                parents=tuple(bytes(16) for _ in inside),
            )
            mark = SnapshotRange(snapshot=name, holder=holder, group=0, low=low, high=high)
            events = [SnapshotPart(runs=(run,))] if inside else []
            self.feed(self.builder.seal(mark, parts=[(alias, events)] if events else []).value)
        known = tuple(HolderInventory(holder=holder, inventory=Inventory.KNOWN) for holder in HOLDERS)
        self.say(SnapshotEnd(snapshot=name, inventories=known))

    def indexed(self) -> dict[tuple[str, int, bytes, bytes], CopyState]:
        return {
            (holder, group, attributes.alias, one): attributes.state
            for (holder, group), table in self.index.copies.items()
            for one, (_, attributes) in table.items()
        }

    def audited(self) -> dict[tuple[str, int, bytes, bytes], CopyState]:
        return {
            (place.holder, place.group, place.alias, one): copy.state
            for place, table in self.audit.tables.places.items()
            for one, copy in table.items()
        }


@settings(max_examples=250, deadline=None)
@given(st.lists(acts, max_size=30))
def test_both_folds_hold_the_same_copies_and_the_same_state(
    steps: list[tuple[str, int, int, list[int], int | None, bool]],
) -> None:
    both = Both()
    restated: set[str] = set()
    for step in steps:
        if both.builder.seq == 1 and step[0] == "equivocate":
            continue
        both.act(*step)
        assert both.audited() == both.indexed(), step
        assert (both.audit.status, both.audit.next_seq) == (both.index.status, both.index.next_seq), step
        assert both.audit.engine_ended == both.index.engine_ended
        told = {name: (h.inventory, h.lost, h.orphans) for name, h in both.index.holders.items()}
        assert told == {name: (h.inventory, h.lost, h.orphans) for name, h in both.audit.holders.items()}, (
            step
        )
        if step[0] in ("snapshot", "inspect", "undeclared"):
            restated |= set(
                both.index.transfers
            )  # the auditor takes those for ended that records were lost of
        assert {name for name, _ in both.audit.transfers} >= set(both.index.transfers) - restated, step


@settings(max_examples=150, deadline=None)
@given(st.lists(acts, max_size=25))
def test_without_snapshots_both_folds_know_the_same_provenance(
    steps: list[tuple[str, int, int, list[int], int | None, bool]],
) -> None:
    both = Both()
    for step in steps:
        if step[0] in ("snapshot", "inspect", "undeclared", "equivocate"):
            continue
        both.act(*step)
    index = {
        (holder, attributes.alias, one): attributes.admitted_after
        for (holder, _), table in both.index.copies.items()
        for one, (_, attributes) in table.items()
    }
    audit = {
        (place.holder, place.alias, one): copy.provenance
        for place, table in both.audit.tables.places.items()
        for one, copy in table.items()
    }
    assert audit == index
