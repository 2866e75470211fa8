"""Sealing: numbers, chain, signatures, sizes; and what readers make of a burnt number."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.chain import sha256
from events.codec import decode_batch
from events.fold.apply import apply
from events.fold.change import Outcome
from events.fold.state import StreamState
from events.hooks.inventory_snapshot import COPIES_PER_RECORD
from events.hooks.stream import RECORD_BYTES, Epoch, OversizeEventError, SealedRecord, StreamWriter
from events.ids import Inventory, StreamKey, StreamStatus
from events.model.batch import ControlPosition
from events.model.part import (
    Ack,
    BlockEvicted,
    CopyRun,
    DomainEvent,
    HolderInventory,
    Refused,
    RequestStanding,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
    StreamEvent,
    UnknownEvents,
)
from events.signing import Signer, verify
from events.topic import MAX_RECORD_BYTES
from tests.support.log import HIGH, LOW, block, declared, opened, stored

SIGNER = Signer.from_seed(sha256(b"epoch key"))
EPOCH = Epoch(StreamKey("w0", 0, "e1"), 5, sha256(b"registration"), 3, "life-1", SIGNER)
CONTROL = ControlPosition(offset=7, hash=sha256(b"control"))
GOLDEN = Path(__file__).parents[3] / "golden" / "events" / "sealed_records.json"


class Carrier:
    """Takes records, or refuses the offers whose turn is in `refuse`."""

    def __init__(self, refuse: frozenset[int] = frozenset()) -> None:
        self.sent: list[SealedRecord] = []
        self.offers = 0
        self._refuse = refuse

    def offer(self, record: SealedRecord) -> bool:
        turn, self.offers = self.offers, self.offers + 1
        if turn in self._refuse:
            return False
        self.sent.append(record)
        return True


def writer(limit_bytes: int | None = None) -> StreamWriter:
    return StreamWriter(EPOCH, lambda domain: sha256(domain.encode())[:16], limit_bytes=limit_bytes)


def write(
    out: StreamWriter,
    carrier: Carrier,
    *stream_events: StreamEvent,
    parts: Mapping[str, Sequence[DomainEvent]] | None = None,
) -> bool:
    return out.write(stream_events, parts or {}, CONTROL, carrier.offer)


def fold(records: Sequence[SealedRecord]) -> tuple[StreamState, list[Outcome]]:
    state = StreamState(EPOCH.stream, EPOCH.epoch_no)
    return state, [apply(state, decode_batch(record.value)).outcome for record in records]


def snapshot(out: StreamWriter, carrier: Carrier, ids: Sequence[bytes]) -> None:
    run = CopyRun(profile=0, ids=tuple(ids), parents=tuple(bytes(16) for _ in ids))
    write(out, carrier, SnapshotBegin(snapshot="s", opened=opened()), parts={"acme": [declared()]})
    mark = SnapshotRange(snapshot="s", holder="gpu", group=0, low=LOW, high=HIGH)
    write(out, carrier, mark, parts={"acme": [SnapshotPart(runs=(run,))]})
    ends = HolderInventory(holder="gpu", inventory=Inventory.KNOWN)
    write(out, carrier, SnapshotEnd(snapshot="s", inventories=(ends,)))


def test_records_are_numbered_and_chained_from_the_registration() -> None:
    out, carrier = writer(), Carrier()
    write(out, carrier, opened())
    write(out, carrier, parts={"acme": [declared(), stored([block(1)])]})
    headers = [decode_batch(record.value).header for record in carrier.sent]
    assert [header.seq for header in headers] == [0, 1]
    assert headers[0].prev == EPOCH.first_prev
    assert headers[1].prev == carrier.sent[0].header_sha256
    assert headers[1].control == CONTROL
    assert headers[1].parts[1].alias == sha256(b"acme")[:16]
    assert {record.partition for record in carrier.sent} == {3}
    assert {record.key for record in carrier.sent} == {b"w0/0"}


def test_record_zero_acks_refusals_and_snapshot_ends_are_signed_by_the_epochs_key() -> None:
    out, carrier = writer(), Carrier()
    write(out, carrier, opened())
    write(out, carrier, parts={"acme": [declared(), stored([block(1)])]})
    write(out, carrier, parts={"acme": [Ack(requests=(RequestStanding(request=3, removed=1, old_left=0),))]})
    write(out, carrier, parts={"acme": [Refused(request=3, reason="no_delete_path", cure="reset")]})
    snapshot(out, carrier, [block(1)])
    signed = [record.seq for record in carrier.sent if record.signature is not None]
    assert signed == [0, 2, 3, 6]
    for record in carrier.sent:
        if record.signature is not None:
            line = record.value.partition(b"\n")[0]
            assert verify(SIGNER.public_key, record.signature, line)


def test_a_refused_record_burns_its_number_and_the_next_names_the_last_one_sent() -> None:
    out, carrier = writer(), Carrier(refuse=frozenset({2}))
    write(out, carrier, opened())
    assert write(out, carrier, parts={"acme": [declared(), stored([block(1)])]})
    assert not write(out, carrier, parts={"acme": [stored([block(2)], block(1))]})
    assert write(out, carrier, parts={"acme": [stored([block(3)], block(2))]})
    last = decode_batch(carrier.sent[-1].value).header
    assert (last.seq, last.prev, out.burnt) == (3, carrier.sent[1].header_sha256, 1)
    state, outcomes = fold(carrier.sent)
    assert outcomes == [Outcome.APPLIED, Outcome.APPLIED, Outcome.GAP]
    assert state.status is StreamStatus.GAP


def test_record_zero_is_never_burnt() -> None:
    out, carrier = writer(), Carrier(refuse=frozenset({0}))
    assert not write(out, carrier, opened())
    assert (out.next_seq, out.prev, out.burnt) == (0, EPOCH.first_prev, 0)
    assert write(out, carrier, opened())
    assert fold(carrier.sent)[1] == [Outcome.APPLIED]


@given(
    st.lists(st.lists(st.integers(0, 40), max_size=5), max_size=12),
    st.frozensets(st.integers(1, 12), max_size=6),
)
def test_after_any_burnt_numbers_a_snapshot_makes_the_stream_whole(
    steps: list[list[int]], refuse: frozenset[int]
) -> None:
    out, carrier = writer(), Carrier(refuse)
    resident: dict[bytes, None] = {}
    write(out, carrier, opened())
    for step in steps:
        ids = [block(number) for number in dict.fromkeys(step)]
        resident.update(dict.fromkeys(ids))
        write(out, carrier, parts={"acme": [declared(), *[stored([one]) for one in ids]]})
    hole = any(before.seq + 1 != after.seq for before, after in pairwise(carrier.sent))
    assert (Outcome.GAP in fold(carrier.sent)[1]) == hole
    quiet = Carrier()
    snapshot(out, quiet, list(resident))
    state, _ = fold([*carrier.sent, *quiet.sent])
    assert state.status is StreamStatus.LIVE
    assert set(state.copies.get(("gpu", 0), {})) == set(resident)


@given(st.integers(1, 300), st.integers(1_200, 4_000))
def test_a_large_batch_is_cut_into_records_that_mean_the_same(count: int, limit_bytes: int) -> None:
    ids = [block(number) for number in range(count)]
    events: list[DomainEvent] = [declared(), stored(ids)]
    whole, cut = (writer(), Carrier()), (writer(limit_bytes), Carrier())
    for out, carrier in (whole, cut):
        write(out, carrier, opened())
        write(out, carrier, UnknownEvents(kind="x", length=1), parts={"acme": events, "beta": [declared()]})
    assert all(len(record.value) <= limit_bytes for record in cut[1].sent)
    left, right = fold(whole[1].sent)[0], fold(cut[1].sent)[0]
    assert right.status is StreamStatus.LIVE
    assert left.copies == right.copies
    assert set(left.profiles) == set(right.profiles)
    assert right.unknown_events == 1


@given(st.integers(2, 200))
def test_a_large_range_is_cut_into_ranges(count: int) -> None:
    ids = sorted(block(number) for number in range(count))
    out, carrier = writer(2_500), Carrier()
    write(out, carrier, opened())
    out.next_seq += 1
    snapshot(out, carrier, ids)
    state, _ = fold(carrier.sent)
    assert state.status is StreamStatus.LIVE
    assert sorted(state.copies["gpu", 0]) == ids


def test_what_a_hook_writes_at_once_is_cut_well_below_what_a_reader_takes() -> None:
    ids = [block(number) for number in range(40_000)]
    out, carrier = writer(), Carrier()
    write(out, carrier, opened())
    write(
        out,
        carrier,
        parts={"acme": [declared(), stored(ids), BlockEvicted(holder="gpu", group=0, ids=tuple(ids))]},
    )
    assert all(len(record.value) <= RECORD_BYTES for record in carrier.sent)
    assert 8 <= len(carrier.sent) <= 24
    state, outcomes = fold(carrier.sent)
    assert (set(outcomes), state.copies["gpu", 0]) == ({Outcome.APPLIED}, {})


def test_an_event_that_cannot_be_cut_may_be_as_large_as_the_log_allows() -> None:
    out, carrier = writer(), Carrier()
    start = opened()
    holders = tuple(start.holders[0].model_copy(update={"name": f"h{n}"}) for n in range(3_000))
    write(out, carrier, start.model_copy(update={"holders": holders}))
    assert RECORD_BYTES < len(carrier.sent[0].value) < MAX_RECORD_BYTES
    assert fold(carrier.sent)[1] == [Outcome.APPLIED]


def test_a_record_of_a_snapshot_is_not_cut() -> None:
    out, carrier = writer(), Carrier()
    write(out, carrier, opened())
    out.next_seq += 1
    snapshot(out, carrier, sorted(block(number) for number in range(COPIES_PER_RECORD)))
    assert len(carrier.sent) == 4
    assert fold(carrier.sent)[0].status is StreamStatus.LIVE


def test_an_event_that_no_cut_makes_small_is_an_error() -> None:
    out, carrier = writer(1_200), Carrier()
    write(out, carrier, opened())
    with pytest.raises(OversizeEventError):
        write(out, carrier, UnknownEvents(kind="x" * 1_500, length=1))


def test_sealed_bytes_are_golden() -> None:
    out, carrier = writer(), Carrier()
    write(out, carrier, opened())
    write(out, carrier, parts={"acme": [declared(), stored([block(1), block(2)], admitted_after=6)]})
    out.next_seq += 1
    snapshot(out, carrier, [block(1)])
    made = [
        {"value": record.value.decode(), "signature": record.signature.hex() if record.signature else None}
        for record in carrier.sent
    ]
    assert made == json.loads(GOLDEN.read_text())
