"""Every row of the fold's table of cases."""

from __future__ import annotations

import pytest

from events.chain import Checksum, transfer_digest
from events.codec import decode_batch
from events.fold.apply import apply, apply_undecodable
from events.fold.change import CopiesDropped, CopiesPut, Outcome
from events.fold.state import StreamState
from events.ids import CopyState, EvictReason, Inventory, StreamKey, StreamStatus, Tier
from events.model.part import (
    Ack,
    BlockEvicted,
    Cleared,
    Closed,
    CopyRun,
    Drained,
    EngineLoss,
    ProfileRetired,
    Refused,
    RequestStanding,
    SnapshotPart,
    Statement,
    TierChanged,
    TransferAborted,
    TransferCommitted,
    TransferStarted,
    UnknownEvents,
)
from tests.support.log import ALIAS, StreamBuilder, block, declared, opened, stored

A, B, C, D = (block(name) for name in "abcd")


def fresh() -> tuple[StreamBuilder, StreamState]:
    builder = StreamBuilder()
    state = StreamState(StreamKey("w0", 0, "e1"), 5)
    assert apply(state, builder.batch(opened(), events=[declared()])).outcome is Outcome.APPLIED
    return builder, state


def held(state: StreamState, holder: str = "gpu") -> set[bytes]:
    return set(state.copies.get((holder, 0), {}))


def test_a_stream_that_never_spoke_is_unopened_not_empty() -> None:
    assert StreamState(StreamKey("w0", 0, "e1"), 5).status is StreamStatus.UNOPENED


def test_stored_blocks_are_resident_with_their_parents() -> None:
    builder, state = fresh()
    changes = apply(state, builder.batch(events=[stored([A, B], None), stored([C], B)]))
    table = state.copies["gpu", 0]
    assert [table[x][0] for x in (A, B, C)] == [bytes(16), A, B]
    assert state.status is StreamStatus.LIVE
    assert next(c for c in changes.copies if isinstance(c, CopiesPut)).ids == (A, B)
    assert state.usage[ALIAS, Tier.GPU].blocks == 3
    assert state.usage[ALIAS, Tier.GPU].bytes == 300


def test_redelivered_batch_changes_nothing() -> None:
    builder, state = fresh()
    batch = builder.batch(events=[stored([A])])
    apply(state, batch)
    again = apply(state, batch)
    assert again.outcome is Outcome.DUPLICATE
    assert not again.copies
    assert state.usage[ALIAS, Tier.GPU].blocks == 1
    assert state.status is StreamStatus.LIVE


def test_other_bytes_under_the_last_seq_are_equivocation() -> None:
    builder, state = fresh()
    before = builder.prev
    apply(state, builder.batch(events=[stored([A])]))
    forged = decode_batch(builder.seal(events=[stored([B])], seq=1, prev=before).value)
    assert apply(state, forged).outcome is Outcome.EQUIVOCATION
    assert (state.status, state.sticky) == (StreamStatus.QUARANTINED, True)


def test_a_wrong_prev_is_a_chain_break_that_no_snapshot_heals() -> None:
    builder, state = fresh()
    assert apply(state, builder.batch(events=[stored([A])], prev=bytes(32))).outcome is Outcome.CHAIN_BREAK
    for batch in builder.snapshot([]):
        apply(state, batch)
    assert state.status is StreamStatus.QUARANTINED


def test_a_burnt_seq_is_a_gap_until_a_complete_snapshot() -> None:
    builder, state = fresh()
    apply(state, builder.batch(events=[stored([A])]))
    builder.burn()
    assert apply(state, builder.batch(events=[stored([B], A)])).outcome is Outcome.GAP
    assert state.status is StreamStatus.GAP
    assert held(state) == {A, B}
    run = CopyRun(profile=0, ids=(C, D), parents=(bytes(16), C))
    begin, middle, end = builder.snapshot([SnapshotPart(runs=(run,))])
    apply(state, begin)
    apply(state, middle)
    assert state.status is StreamStatus.GAP
    apply(state, end)
    assert state.status is StreamStatus.LIVE
    assert held(state) == {C, D}
    assert state.usage[ALIAS, Tier.GPU].blocks == 2


def test_a_snapshot_with_a_hole_in_the_middle_heals_nothing() -> None:
    builder, state = fresh()
    builder.burn()
    begin, middle, end = builder.snapshot([])
    apply(state, begin)
    apply(state, end)
    assert state.status is StreamStatus.GAP
    assert apply(state, middle).outcome is Outcome.DUPLICATE


def test_an_incomplete_range_heals_nothing() -> None:
    builder, state = fresh()
    builder.burn()
    from events.model.part import SnapshotBegin, SnapshotEnd, SnapshotRange

    apply(state, builder.batch(SnapshotBegin(snapshot="s", opened=opened())))
    half = SnapshotRange(snapshot="s", holder="gpu", group=0, low=bytes(16), high=b"\x7f" + b"\xff" * 15)
    apply(state, builder.batch(half))
    changes = apply(state, builder.batch(SnapshotEnd(snapshot="s", inventories=())))
    assert state.status is StreamStatus.GAP
    assert changes.resync


def test_a_snapshot_that_confirms_writes_nothing() -> None:
    builder, state = fresh()
    apply(state, builder.batch(events=[stored([A, B], None, admitted_after=3)]))
    from events.ids import Lineage

    run = CopyRun(profile=0, lineage=Lineage.UNKNOWN, admitted_after=3, ids=(A, B), parents=(bytes(16), A))
    changed = [apply(state, batch).copies for batch in builder.snapshot([SnapshotPart(runs=(run,))])]
    assert changed == [[], [], []]


def test_engine_loss_makes_every_copy_uncertain_and_holders_partial() -> None:
    builder, state = fresh()
    apply(state, builder.batch(events=[stored([A])]))
    apply(state, builder.batch(EngineLoss(first_missing=3)))
    assert state.copies["gpu", 0][A][1].state is CopyState.UNCERTAIN
    assert state.holders["gpu"].inventory is Inventory.PARTIAL


def test_a_clear_of_the_whole_holder_ends_partial() -> None:
    builder, state = fresh()
    apply(state, builder.batch(EngineLoss(first_missing=3), events=[]))
    apply(state, builder.batch(events=[stored([A])]))
    changes = apply(state, builder.batch(Cleared(holders=("gpu",))))
    assert held(state) == set()
    assert state.holders["gpu"].inventory is Inventory.EMPTY
    assert changes.copies == [CopiesDropped("gpu", 0, (A,), "cleared")]


def test_a_clear_of_unknown_scope_empties_nothing_elsewhere() -> None:
    builder = StreamBuilder()
    state = StreamState(StreamKey("w0", 0, "e1"), 5)
    apply(state, builder.batch(opened(Tier.GPU, Tier.CPU), events=[declared()]))
    apply(state, builder.batch(events=[stored([A]), stored([A], holder="cpu")]))
    apply(state, builder.batch(Cleared(holders=("gpu",), unknown_scope=True)))
    assert held(state, "cpu") == {A}
    assert state.holders["cpu"].inventory is Inventory.PARTIAL


def test_a_duplicate_store_never_raises_provenance() -> None:
    builder, state = fresh()
    apply(state, builder.batch(events=[stored([A], None, admitted_after=4)]))
    apply(state, builder.batch(events=[stored([A], None, admitted_after=9)]))
    assert state.copies["gpu", 0][A][1].admitted_after == 4
    apply(state, builder.batch(events=[stored([A], None)]))
    assert state.copies["gpu", 0][A][1].admitted_after is None


def test_an_uncertain_removal_keeps_the_copy_in_doubt() -> None:
    builder, state = fresh()
    apply(state, builder.batch(events=[stored([A, B])]))
    gone = BlockEvicted(holder="gpu", group=0, ids=(A,), reason=EvictReason.CAPACITY, certain=False)
    apply(state, builder.batch(events=[gone]))
    assert state.copies["gpu", 0][A][1].state is CopyState.UNCERTAIN
    apply(state, builder.batch(events=[gone.model_copy(update={"certain": True, "ids": (A, B, C)})]))
    assert held(state) == set()
    assert state.usage[ALIAS, Tier.GPU].blocks == 0


def test_removing_what_is_not_there_is_no_operation() -> None:
    builder, state = fresh()
    changes = apply(state, builder.batch(events=[BlockEvicted(holder="gpu", group=0, ids=(A,))]))
    assert not changes.copies


def test_a_tier_change_is_one_move_with_attributes() -> None:
    builder = StreamBuilder()
    state = StreamState(StreamKey("w0", 0, "e1"), 5)
    apply(state, builder.batch(opened(Tier.GPU, Tier.CPU), events=[declared()]))
    apply(state, builder.batch(events=[stored([A, B], None, admitted_after=7)]))
    apply(state, builder.batch(events=[TierChanged(from_holder="gpu", to_holder="cpu", group=0, ids=(B, C))]))
    assert (held(state), held(state, "cpu")) == ({A}, {B})
    assert state.copies["cpu", 0][B][1].admitted_after == 7
    assert state.usage[ALIAS, Tier.CPU].blocks == 1


def test_transfers_are_pending_until_committed_and_gone_when_aborted() -> None:
    builder, state = fresh()
    start = TransferStarted(transfer="t1", source="w9", holder="gpu", group=0, profile=0, ids=(A, B))
    apply(state, builder.batch(events=[start, start.model_copy(update={"transfer": "t2", "ids": (C,)})]))
    assert state.copies["gpu", 0][A][1].state is CopyState.PENDING
    apply(state, builder.batch(events=[TransferCommitted(transfer="t1", digest=transfer_digest([A, B]))]))
    apply(state, builder.batch(events=[TransferAborted(transfer="t2")]))
    assert state.copies["gpu", 0][A][1].state is CopyState.COMMITTED
    assert held(state) == {A, B}
    assert not state.transfers


def test_a_checksum_that_differs_quarantines_until_a_snapshot() -> None:
    builder, state = fresh()
    apply(state, builder.batch(events=[stored([A, B])]))
    wanted = Checksum()
    wanted.add([A, B])
    right = Statement(holder="gpu", group=0, count=2, checksum=wanted.value, source="derived")
    assert not apply(state, builder.batch(events=[right])).resync
    wrong = right.model_copy(update={"checksum": bytes(16)})
    assert apply(state, builder.batch(events=[wrong])).resync
    assert state.status is StreamStatus.QUARANTINED
    for batch in builder.snapshot([]):
        apply(state, batch)
    assert state.status is StreamStatus.LIVE


def test_a_statement_counts_after_the_records_own_events() -> None:
    builder, state = fresh()
    total = Checksum()
    total.add([A])
    statement = Statement(holder="gpu", group=0, count=1, checksum=total.value, source="derived")
    assert not apply(state, builder.batch(events=[statement, stored([A])])).resync


@pytest.mark.parametrize(
    "event",
    [
        stored([A], None, holder="disk"),
        stored([A], None, group=3),
        stored([A], None, profile=9),
        TierChanged(from_holder="gpu", to_holder="nowhere", group=0, ids=(A,)),
        SnapshotPart(runs=()),
    ],
)
def test_an_illegal_record_is_dead_and_quarantines_its_stream_alone(event: object) -> None:
    builder, state = fresh()
    apply(state, builder.batch(events=[stored([B])]))
    changes = apply(state, builder.batch(events=[event]))
    assert changes.outcome is Outcome.ILLEGAL
    assert changes.dead
    assert held(state) == {B}
    assert state.status is StreamStatus.QUARANTINED
    assert apply(state, builder.batch(events=[stored([C], B)])).outcome is Outcome.APPLIED


def test_an_undecodable_next_record_quarantines_and_the_chain_goes_on() -> None:
    builder, state = fresh()
    lost = builder.seal(events=[stored([A])])
    changes = apply_undecodable(state, lost.seq, "malformed")
    assert (changes.outcome, changes.resync) == (Outcome.UNDECODABLE, True)
    assert apply(state, builder.batch(events=[stored([B])])).outcome is Outcome.APPLIED
    assert state.status is StreamStatus.QUARANTINED
    for batch in builder.snapshot([]):
        apply(state, batch)
    assert state.status is StreamStatus.LIVE


def test_acks_and_refusals_stand_by_domain_and_request() -> None:
    builder, state = fresh()
    ack = Ack(requests=(RequestStanding(request=12, removed=3, old_left=0),), nonce=14)
    changes = apply(
        state, builder.batch(events=[ack, Refused(request=13, reason="no_delete_path", cure="x")])
    )
    assert state.standings[ALIAS, 12].discharged
    assert not state.standings[ALIAS, 13].discharged
    assert state.nonces[ALIAS] == 14
    assert changes.standings == {(ALIAS, 12), (ALIAS, 13)}


def test_a_profile_number_never_stands_for_another_profile() -> None:
    builder, state = fresh()
    apply(state, builder.batch(events=[stored([A])]))
    assert apply(state, builder.batch(events=[declared()])).outcome is Outcome.APPLIED
    assert apply(state, builder.batch(events=[declared(0, (7,))])).outcome is Outcome.ILLEGAL
    assert state.usage[ALIAS, Tier.GPU].bytes == 100


def test_retired_profiles_void_their_copies() -> None:
    builder, state = fresh()
    apply(state, builder.batch(events=[declared(1), stored([A]), stored([B], None, profile=1)]))
    apply(state, builder.batch(events=[ProfileRetired(profile=1)]))
    assert held(state) == {A}
    assert apply(state, builder.batch(events=[stored([C], None, profile=1)])).outcome is Outcome.ILLEGAL


def test_draining_and_closing() -> None:
    builder, state = fresh()
    apply(state, builder.batch(Drained(), events=[stored([A])]))
    assert state.status is StreamStatus.DRAINING
    apply(state, builder.batch(Closed()))
    assert (state.status, held(state)) == (StreamStatus.CLOSED, {A})


def test_closing_with_the_engine_ends_volatile_copies() -> None:
    builder, state = fresh()
    apply(state, builder.batch(events=[stored([A])]))
    apply(state, builder.batch(Closed(engine_ended=True)))
    assert held(state) == set()


def test_unknown_engine_events_flag_the_stream() -> None:
    builder, state = fresh()
    apply(state, builder.batch(UnknownEvents(kind="BlockTouched", length=30, count=2)))
    assert (state.unknown_events, state.status) == (2, StreamStatus.LIVE)


def test_a_fold_that_starts_behind_the_logs_start_takes_a_snapshot_as_its_base() -> None:
    builder = StreamBuilder()
    for _ in range(3):
        builder.burn()
    state = StreamState(StreamKey("w0", 0, "e1"), 5)
    assert apply(state, builder.batch(events=[stored([A])])).outcome is Outcome.GAP
    assert held(state) == set()
    run = CopyRun(profile=0, ids=(A,), parents=(bytes(16),))
    for batch in builder.snapshot([SnapshotPart(runs=(run,))]):
        apply(state, batch)
    assert (state.status, held(state)) == (StreamStatus.LIVE, {A})


def test_garbage_under_any_other_number_changes_no_state() -> None:
    builder, state = fresh()
    apply(state, builder.batch(events=[stored([A])]))
    for seq in (0, 1, 3, 4, 10**30):
        changes = apply_undecodable(state, seq, "malformed")
        assert changes.dead
        assert not changes.resync
    assert apply(state, builder.batch(events=[stored([B], A)])).outcome is Outcome.APPLIED
    assert (state.status, held(state)) == (StreamStatus.LIVE, {A, B})


def test_faults_that_no_snapshot_heals_ask_for_another_epoch_by_name() -> None:
    builder, state = fresh()
    broken = apply(state, builder.batch(events=[stored([A])], prev=bytes(32)))
    assert (broken.resync, broken.detail.split()[0]) == (True, "chain_break")
    builder, state = fresh()
    forged = decode_batch(builder.seal(events=[stored([B])], seq=0, prev=bytes(32)).value)
    twice = apply(state, forged)
    assert (twice.resync, twice.detail.split(":")[0]) == (True, "equivocation")


def test_a_transfer_known_from_a_snapshot_alone_commits_like_any_other() -> None:
    builder, state = fresh()
    builder.burn()
    run = CopyRun(profile=0, state=CopyState.PENDING, transfer="t9", ids=(A,), parents=(bytes(16),))
    for batch in builder.snapshot([SnapshotPart(runs=(run,))]):
        apply(state, batch)
    apply(state, builder.batch(events=[TransferCommitted(transfer="t9", digest=transfer_digest([A]))]))
    assert state.copies["gpu", 0][A][1].state is CopyState.COMMITTED


def test_a_forged_unreadable_record_costs_a_snapshot_and_no_epoch() -> None:
    builder, state = fresh()
    genuine = builder.batch(events=[stored([A])])
    assert apply_undecodable(state, genuine.header.seq, "unknown_version").resync
    assert apply(state, genuine).outcome is Outcome.DUPLICATE
    assert apply(state, builder.batch(events=[stored([B], A)])).outcome is Outcome.APPLIED
    assert (state.status, state.sticky) == (StreamStatus.QUARANTINED, False)
    run = CopyRun(profile=0, ids=(A, B), parents=(bytes(16), A))
    for batch in builder.snapshot([SnapshotPart(runs=(run,))]):
        apply(state, batch)
    assert (state.status, held(state)) == (StreamStatus.LIVE, {A, B})
