from __future__ import annotations

from events.fold.change import Changes, CopiesDropped, CopiesPut, Outcome
from events.fold.state import CopyAttributes, StreamState
from events.ids import CopyState, Lineage, StreamKey
from indexer.bulk import encode
from indexer.delta import LiveCopy, StreamDelta
from tests.support.log import ALIAS, block

KEY = StreamKey("w", 0, "e")
ATTRIBUTES = CopyAttributes(ALIAS, 0, CopyState.COMMITTED, Lineage.PREFILL, None, False, None)
OTHER = ATTRIBUTES._replace(state=CopyState.UNCERTAIN)
PARENT = bytes(16)
ID = block(1)


def put(attributes: CopyAttributes = ATTRIBUTES) -> CopiesPut:
    return CopiesPut("gpu", 0, attributes, (ID,), (PARENT,))


def dropped(reason: str = "capacity") -> CopiesDropped:
    return CopiesDropped("gpu", 0, (ID,), reason)


def collapse(*changes: CopiesPut | CopiesDropped) -> StreamDelta:
    delta = StreamDelta(StreamState(KEY, 1))
    for offset, change in enumerate(changes, 10):
        delta.add(offset, Changes(KEY, Outcome.APPLIED, copies=[change]))
    return delta


def test_last_attributes_win_and_the_begin_stays() -> None:
    copies = collapse(put(), put(OTHER)).copies["gpu", 0]
    assert copies.live == {ID: LiveCopy(PARENT, OTHER, 10)}
    assert not copies.ended


def test_copy_that_came_and_went_leaves_only_history() -> None:
    copies = collapse(put(), dropped()).copies["gpu", 0]
    assert not copies.live
    assert copies.ended[ID].to == 11
    assert copies.ended[ID].put == LiveCopy(PARENT, ATTRIBUTES, 10)


def test_only_the_first_end_reaches_the_table() -> None:
    copies = collapse(dropped("first"), put(), dropped("second"), put()).copies["gpu", 0]
    assert (copies.ended[ID].to, copies.ended[ID].reason, copies.ended[ID].put) == (10, "first", None)
    (passing,) = copies.passing
    assert (passing.copy.since, passing.to, passing.reason) == (11, 12, "second")
    assert copies.live[ID].since == 13


def test_nul_in_text_cannot_make_a_transaction_fail() -> None:
    assert encode([{"a": "x\0y", "b": "\\u0000", "c": b"\0\1"}]) == (
        '[{"a": "x\\ufffdy", "b": "\\\\u0000", "c": "\\\\x0001"}]'
    )
