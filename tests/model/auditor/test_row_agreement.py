"""What the auditor says the index's rows have to be is what the index's own fold makes, on any stream."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import auditor.row_table
import events.fold.residency
from auditor.record import StreamRecord, UnreadableRecord, read_record
from auditor.row_stream import RowStream
from events.codec import BatchDecodeError, decode_batch
from events.fold.apply import apply, apply_undecodable
from events.fold.change import Changes, CopiesPut
from events.ids import StreamKey
from indexer.row import LOST, holder_row, stream_row
from tests.model.auditor.test_fold_agreement import Both, acts
from tests.support.log import block, stored


class Rows(Both):
    """One stream under the index's fold and the auditor's rows, with the offsets of its records."""

    INSTALLED = 6  # rows say what was claimed, also what a verdict doesn't believe

    def __init__(self) -> None:
        self.offset = -1
        self.since: dict[tuple[str, int, bytes], int] = {}
        self.rows = RowStream(StreamKey("w0", 0, "e1"), 5)
        super().__init__()

    def feed(self, value: bytes) -> None:
        self.last = value
        self.offset += 1
        changes: Changes | None = None
        try:
            changes = apply(self.index, decode_batch(value))
        except BatchDecodeError as error:
            if error.stream is not None and error.seq is not None:
                changes = apply_undecodable(self.index, error.seq, error.reason)
        for change in changes.copies if changes is not None else ():
            for one in change.ids:
                place = (change.holder, change.group, one)
                if isinstance(change, CopiesPut):
                    self.since.setdefault(place, self.offset)
                else:
                    del self.since[place]
        record = read_record(0, self.offset, value, None, lambda _: None)
        if isinstance(record, StreamRecord):
            self.rows.apply(record)
        else:
            assert isinstance(record, UnreadableRecord)
            self.rows.apply_unreadable(record.seq or 0, record.reason)

    def copies_indexed(self) -> dict[Any, Any]:
        return {
            (holder, group, a.alias, one): (
                parent, a.profile, a.state, a.lineage, a.admitted_after, a.pinned, a.transfer,
                self.since[holder, group, one],
            )
            for (holder, group), table in self.index.copies.items()
            for one, (parent, a) in table.items()
        }  # fmt: skip

    def copies_audited(self) -> dict[Any, Any]:
        return {
            (*place[:2], place.alias, one): (*copy.attributes(), copy.since)
            for place, one, copy in self.rows.copies()
        }

    def compare(self) -> None:
        index, rows = self.index, self.rows
        assert self.copies_audited() == self.copies_indexed()
        stored_ = stream_row(index, 0)
        assert (rows.status, rows.sticky, rows.next_seq, rows.prev, rows.draining, rows.engine_ended) == (
            index.status, index.sticky, index.next_seq, index.prev, index.draining, index.engine_ended,
        )  # fmt: skip
        assert rows.prev == index.last_header
        assert rows.first_prev == index.first_prev
        assert rows.installed == (index.control_offset, index.control_hash)
        assert rows.duplicates == index.duplicates
        assert rows.unknown_events == stored_["unknown_events"]
        assert {alias.hex(): nonce for alias, nonce in rows.nonces.items()} == stored_["nonces"]
        assert {name: holder_row(holder)["inventory"] for name, holder in index.holders.items()} == {
            name: rows.inventory_of(name) for name in rows.holders
        }
        assert {key: (u.blocks, u.bytes) for key, u in index.usage.items() if u.blocks} == {
            key: used for key, used in rows.usage().items() if used[0]
        }
        assert {
            k: (s.removed, s.old_left, s.orphans, s.unassigned, s.seq, s.refused)
            for k, s in index.standings.items()
        } == {k: a[:6] for k, a in rows.answers.items()}


@settings(max_examples=250, deadline=None)
@given(st.lists(acts, max_size=30))
def test_rows_are_what_the_index_holds(
    steps: list[tuple[str, int, int, list[int], int | None, bool]],
) -> None:
    both = Rows()
    for step in steps:
        both.act(*step)
        both.compare()


def test_a_holder_at_its_bound_is_quarantined_as_in_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor.row_table, "LEAST_BOUND", 5)
    monkeypatch.setattr(auditor.row_table, "STREAM_BOUND", 5)
    monkeypatch.setattr(events.fold.residency, "STREAM_COPIES", 5)
    both = Rows()
    for first in range(0, 8, 2):
        both.say(alias=b"A" * 16, events=[stored([block("bound", first), block("bound", first + 1)])])
        both.compare()
    assert both.index.status == "quarantined"


def test_the_word_for_a_lossy_holder_is_the_index_s() -> None:
    both = Rows()
    both.act("loss", 0, 0, [1], None, True)
    assert both.rows.inventory_of("gpu") == LOST
    both.compare()
