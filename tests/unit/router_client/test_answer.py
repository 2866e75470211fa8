"""What the view answers, and what it refuses to say: bounds, coverage, reasons, tombstones, tiers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from events.ids import Basis, GroupKind, Inventory, Tier
from events.model.control import (
    DeletionRequested,
    DomainScope,
    Fenced,
    PrefixScope,
    ProfileScope,
)
from events.model.part import (
    Ack,
    Closed,
    CopyRun,
    Drained,
    EngineLoss,
    Group,
    HolderInventory,
    ProfileRetired,
    Refused,
    RequestStanding,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
    Statement,
    TierChanged,
)
from events.model.profile import LayoutProfile
from events.model.signal import Echo, Load
from events.token import Token
from router_client.limit import ViewLimits
from router_client.problem import Problem, ProblemKind
from router_client.wire import CONSISTENCY_HEADER, answer_headers
from tests.support.log import HIGH, LOW, PROFILE, block, declared, opened
from tests.support.reader_world import Hook, World, chain_of, lengths, reasons

TOKENS = list(range(640))
CHAIN = chain_of(TOKENS)


def test_a_fresh_whole_stream_is_credited_with_what_it_holds() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:20])
    world.round(hook)
    world.wait(300)
    found = world.get(CHAIN)
    match = found.matches[0]
    assert (match.worker, match.matched_blocks, match.matched_tokens) == ("w0", 20, 320)
    assert asdict(match.tiers) == {"gpu": 320, "cpu": 320, "disk": 320, "remote": 320}
    assert (match.staleness_ms, match.basis, match.identity) == (300.0, Basis.PUBLISHED, "verified")
    assert (match.endpoint, match.within_bound) == ("http://w0", True)
    assert match.position.next_seq == 2
    assert found.complete
    assert asdict(found.coverage) == {"included": 1, "eligible": 1}
    assert found.as_of == "2023-11-14T22:13:19.700+00:00"


def test_tokens_and_ids_give_the_same_answer() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:20])
    world.round(hook)
    assert world.get(token_ids=TOKENS).matches == world.get(CHAIN).matches
    assert lengths(world.get(token_ids=TOKENS[:330])) == {"w0": 20}
    assert lengths(world.get(token_ids=TOKENS[:170])) == {"w0": 10}
    assert world.get(token_ids=TOKENS[:15]).matches == []


def test_eight_workers_at_eight_depths_are_ordered_by_what_they_have() -> None:
    world = World()
    hooks = [world.join(f"w{n}") for n in range(8)]
    for n, hook in enumerate(hooks):
        hook.store(CHAIN[: 5 * (n + 1)])
    world.round(*hooks)
    found = world.get(CHAIN)
    assert [m.matched_blocks for m in found.matches] == [40, 35, 30, 25, 20, 15, 10, 5]
    assert [m.matched_blocks for m in world.get(CHAIN, limit=2).matches] == [40, 35]


def test_an_eviction_in_mid_chain_ends_the_match_there_until_it_is_stored_again() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN)
    hook.evict([CHAIN[7]])
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 7}
    hook.store([CHAIN[7]], parent=CHAIN[6])
    hook.store(CHAIN[:9])
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 40}


def test_only_committed_copies_are_credited() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    hook.evict([CHAIN[2]], certain=False)
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 2}
    hook.write(EngineLoss(first_missing=3))
    world.round(hook)
    found = world.get(CHAIN)
    assert (found.matches, found.complete) == ([], False)
    hook.store(CHAIN[:2])
    world.round(hook)
    found = world.get(CHAIN)
    assert lengths(found) == {"w0": 2}
    assert [(match.inventory, match.within_bound) for match in found.matches] == [("partial", True)]


def test_without_an_echo_a_stream_is_silent_and_the_answer_refused() -> None:
    world = World()
    world.join().store(CHAIN[:4])
    refusal = world.refused(CHAIN)
    assert (refusal.status, refusal.kind) == (503, ProblemKind.STALENESS_BOUND_UNMET)
    assert refusal.coverage is not None
    assert asdict(refusal.coverage) == {"included": 0, "eligible": 1}
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "silent"
    assert refusal.best_achievable_ms is None


def test_age_counts_from_when_the_own_beacon_was_begun() -> None:
    world = World()
    hook = world.join()
    echo = world.beacon()
    world.wait(500)
    hook.pulse(echo=echo)
    world.wait(499)
    assert world.get(CHAIN).staleness_ms == 999.0
    world.wait(2)
    refusal = world.refused(CHAIN)
    assert refusal.best_achievable_ms == 1_001.0
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "stale"
    world.wait(2_000)
    refusal = world.refused(CHAIN)
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "silent"


def test_age_never_falls_below_that_of_kv_control() -> None:
    world = World()
    hook = world.join()
    world.control_ns = world.now_ns
    world.wait(800)
    world.round(hook)
    assert world.get(CHAIN).staleness_ms == 800.0


def test_a_pulse_counts_only_once_what_it_announces_is_applied() -> None:
    world = World()
    hook = world.join()
    world.round(hook)
    hook.hold = True
    hook.store(CHAIN[:4])
    world.wait(900)
    world.round(hook)
    world.wait(200)
    assert isinstance(world.ask(CHAIN), Problem)
    hook.release()
    assert world.get(CHAIN).staleness_ms == 200.0
    assert lengths(world.get(CHAIN)) == {"w0": 4}


def test_an_echo_with_another_nonce_or_of_an_unknown_offset_never_counts() -> None:
    world = World()
    hook = world.join()
    echo = world.beacon()
    hook.pulse(echo=Echo(offset=echo.offset, nonce=bytes(16)))
    assert isinstance(world.ask(CHAIN), Problem)
    hook.pulse(echo=Echo(offset=echo.offset + 5, nonce=echo.nonce))
    assert isinstance(world.ask(CHAIN), Problem)


def test_an_echo_of_another_readers_beacon_counts_from_the_own_one_before_it() -> None:
    world = World()
    hook = world.join()
    world.beacon()
    world.wait(300)
    world.beacon(reader="somebody")
    hook.pulse()
    assert world.get(CHAIN).staleness_ms == 300.0


def test_an_echo_waits_until_its_beacon_was_read_back_here() -> None:
    world = World()
    hook = world.join()
    echo = world.beacon(deliver=False)
    hook.pulse(echo=echo)
    assert isinstance(world.ask(CHAIN), Problem)
    world.view.apply_signal(
        echo.offset, b'{"type":"beacon","reader":"reader","nonce":"' + echo.nonce.hex().encode() + b'"}',
        world.now_ns,
    )  # fmt: skip
    assert world.get(CHAIN).staleness_ms == 0.0


def test_truncated_signals_discard_all_remembered_beacons() -> None:
    world = World()
    hook = world.join()
    echo = world.beacon()
    world.view.apply_signal(echo.offset, b"{}", world.now_ns)
    hook.pulse(echo=echo)
    assert isinstance(world.ask(CHAIN), Problem)


def test_staleness_never_falls_back_within_an_epoch() -> None:
    world = World()
    hook = world.join()
    old = world.beacon()
    world.wait(100)
    new = world.beacon()
    hook.pulse(echo=new)
    hook.pulse(echo=old)
    assert world.get(CHAIN).staleness_ms == 0.0


def test_a_lost_record_excludes_the_stream_at_once_until_a_snapshot() -> None:
    world = World()
    hook, other = world.join("w0"), world.join("w1")
    other.store(CHAIN[:3])
    hook.store(CHAIN[:4])
    hook.builder.burn()
    hook.store(CHAIN[4:6], parent=CHAIN[3])
    world.round(hook, other)
    found = world.get(CHAIN)
    assert (lengths(found), reasons(found), found.complete) == ({"w1": 3}, {"w0": "gap"}, False)
    hook.write(SnapshotBegin(snapshot="s", opened=opened()), events=[declared()])
    runs = CopyRun(profile=0, ids=tuple(CHAIN[:6]), parents=(bytes(16), *CHAIN[:5]))
    hook.write(
        SnapshotRange(snapshot="s", holder="gpu", group=0, low=LOW, high=HIGH),
        events=[SnapshotPart(runs=(runs,))],
    )
    known = HolderInventory(holder="gpu", inventory=Inventory.KNOWN)
    hook.write(SnapshotEnd(snapshot="s", inventories=(known,)))
    world.round(hook, other)
    found = world.get(CHAIN)
    assert (lengths(found), found.complete) == ({"w0": 6, "w1": 3}, True)


def test_a_broken_chain_quarantines() -> None:
    world = World()
    hook = world.join()
    world.round(hook)
    hook.builder.prev = bytes(32)
    hook.store(CHAIN[:4])
    world.round(hook)
    refusal = world.refused(CHAIN)
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "quarantined"


def test_a_pulse_that_contradicts_the_fold_leaves_the_stream_out() -> None:
    world = World()
    hook, other = world.join("w0"), world.join("w1")
    hook.store(CHAIN[:4])
    hook.copies["gpu", 0].add(block("not reported"))
    world.round(hook, other)
    assert reasons(world.get(CHAIN)) == {"w0": "quarantined"}
    hook.copies["gpu", 0].discard(block("not reported"))
    world.round(hook, other)
    assert lengths(world.get(CHAIN)) == {"w0": 4}


def test_a_statement_that_differs_quarantines() -> None:
    world = World()
    hook = world.join()
    hook.write(events=[Statement(holder="gpu", group=0, count=3, checksum=bytes(16), source="derived")])
    world.round(hook)
    assert isinstance(world.ask(CHAIN), Problem)


def test_a_new_epoch_voids_the_old_one_at_once_even_before_its_first_record() -> None:
    world = World()
    old = world.join()
    old.store(CHAIN)
    world.round(old)
    assert lengths(world.get(CHAIN)) == {"w0": 40}
    new = world.join(epoch="e2", start=False)
    refusal = world.refused(CHAIN)
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "unopened"
    old.store([block("late")])
    new.open()
    new.store(CHAIN[:2])
    world.round(old, new)
    assert lengths(world.get(CHAIN)) == {"w0": 2}
    while not world.view.work(10_000):
        pass
    assert len(world.view.index) == 2
    assert world.view.copies == 2


def test_ranks_of_one_worker_are_apart() -> None:
    world = World()
    zero, one = world.join("w0", 0), world.join("w0", 1)
    zero.store(CHAIN[:4])
    one.store(CHAIN[:6])
    one.evict([CHAIN[0]])
    world.round(zero, one)
    found = world.get(CHAIN)
    assert [(m.dp_rank, m.matched_blocks) for m in found.matches] == [(0, 4)]


def test_a_registered_rank_that_never_wrote_lowers_the_coverage() -> None:
    world = World()
    hook = world.join("w0", 0)
    world.join("w0", 1, start=False)
    world.round(hook)
    found = world.get(CHAIN)
    assert not found.complete
    assert asdict(found.coverage) == {"included": 1, "eligible": 2}
    assert found.excluded[0].reason == "unopened"


def test_a_stream_that_nobody_registered_is_named_and_never_scored() -> None:
    world = World()
    hook, stranger = world.join("w0"), World().join("w9")
    hook.store(CHAIN[:1])
    for record in stranger.builder.sent:
        world.deliver(record.value)
    world.round(hook)
    assert reasons(world.get(CHAIN)) == {"w9": "unregistered"}


def test_a_stream_whose_first_record_names_another_registration_is_not_scored() -> None:
    world = World()
    hook = world.join(start=False)
    hook.builder.prev = bytes(32)
    hook.open()
    hook.store(CHAIN[:4])
    world.round(hook)
    refusal = world.refused(CHAIN)
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "unregistered"


def test_a_fenced_stream_is_neither_scored_nor_eligible() -> None:
    world = World()
    hook, other = world.join("w0"), world.join("w1")
    hook.store(CHAIN[:4])
    other.store(CHAIN[:2])
    world.order(Fenced(worker="w0", rank=0, epoch="e1", evidence="timeout"))
    world.round(hook, other)
    found = world.get(CHAIN)
    assert (lengths(found), reasons(found)) == ({"w1": 2}, {"w0": "fenced"})
    assert found.complete


def test_draining_and_closed_workers_are_left_out() -> None:
    world = World()
    drained, closed, other = world.join("w0"), world.join("w1"), world.join("w2")
    for hook in (drained, closed, other):
        hook.store(CHAIN[:4])
    drained.write(Drained())
    closed.write(Closed(engine_ended=True))
    world.round(drained, closed, other)
    found = world.get(CHAIN)
    assert (lengths(found), reasons(found)) == ({"w2": 4}, {"w0": "draining"})
    assert asdict(found.coverage) == {"included": 1, "eligible": 2}


def stale_and_fresh() -> World:
    world = World()
    stale, fresh = world.join("stale"), world.join("fresh")
    stale.store(CHAIN[:4])
    fresh.store(CHAIN[:2])
    world.round(stale, fresh)
    world.wait(1_500)
    world.round(fresh)
    return world


def test_on_stale_drop_names_the_stale_ones() -> None:
    found = stale_and_fresh().get(CHAIN)
    assert (lengths(found), reasons(found), found.complete) == ({"fresh": 2}, {"stale": "stale"}, False)


def test_on_stale_fail_refuses() -> None:
    refusal = stale_and_fresh().refused(CHAIN, on_stale="fail")
    assert (refusal.status, refusal.best_achievable_ms) == (503, 1_500.0)


def test_on_stale_include_marks() -> None:
    found = stale_and_fresh().get(CHAIN, on_stale="include")
    assert {m.worker: m.within_bound for m in found.matches} == {"stale": False, "fresh": True}
    assert not found.complete
    assert found.staleness_ms == 1_500.0


@pytest.mark.parametrize(("wanted", "ok"), [(0, True), (1, True), (2, False), (0.5, True), (1.0, False)])
def test_min_coverage_counts_streams_or_their_share(wanted: float, ok: bool) -> None:
    found = stale_and_fresh().ask(CHAIN, min_coverage=wanted)
    assert isinstance(found, Problem) is not ok


def test_all_out_of_bound_is_a_refusal_unless_no_coverage_is_asked() -> None:
    world = stale_and_fresh()
    world.wait(5_000)
    assert world.refused(CHAIN).status == 503
    found = world.get(CHAIN, min_coverage=0)
    assert (found.matches, found.complete) == ([], False)
    assert world.refused(CHAIN, on_stale="fail").status == 503
    assert len(world.get(CHAIN, on_stale="include").matches) == 2


def test_no_worker_at_all_is_a_refusal_unless_no_coverage_is_asked() -> None:
    world = World()
    gone = world.join()
    gone.write(Closed())
    refusal = world.refused(CHAIN)
    assert (refusal.status, refusal.detail) == (503, "no worker is registered")
    found = world.get(CHAIN, min_coverage=0)
    assert (found.matches, found.complete) == ([], False)


def test_absence_is_claimed_only_over_all_eligible_streams() -> None:
    world = World()
    hook = world.join("w0")
    world.round(hook)
    found = world.get(CHAIN)
    assert (found.matches, found.complete) == ([], True)
    world.join("w1", start=False)
    assert not world.get(CHAIN).complete


def test_consistency_any_takes_whatever_is_known_and_says_how_old_it_is() -> None:
    world = stale_and_fresh()
    never = world.join("never")
    never.store(CHAIN[:9])
    world.wait(60_000)
    found = world.get(CHAIN, consistency="any")
    assert lengths(found) == {"never": 9, "stale": 4, "fresh": 2}
    assert {m.worker: m.within_bound for m in found.matches}["never"] is False
    assert not found.complete
    assert found.staleness_ms is None


def test_a_bound_below_the_floor_is_refused_with_the_floor() -> None:
    world = World()
    world.round(world.join())
    refusal = world.refused(CHAIN, max_staleness_ms=5)
    assert (refusal.status, refusal.kind) == (422, ProblemKind.BOUND_BELOW_FLOOR)
    assert refusal.floor_ms == 300.0


def test_an_unconfirmed_basis_counts_only_for_who_asks_for_it() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    world.beacon()
    hook.pulse(basis=Basis.UNCONFIRMED)
    refusal = world.refused(CHAIN)
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "unconfirmed"
    assert world.get(CHAIN, basis="unconfirmed").matches[0].basis is Basis.UNCONFIRMED
    hook.pulse(basis=Basis.ENGINE)
    assert world.get(CHAIN, basis="engine").matches[0].basis is Basis.ENGINE


def test_candidates_each_get_an_answer_and_nobody_else_does() -> None:
    world = World()
    a, b, c = world.join("a"), world.join("b"), world.join("c")
    a.store(CHAIN[:4])
    c.store(CHAIN[:9])
    world.round(a, b, c)
    found = world.get(CHAIN, candidates=["a", "b", "nobody"])
    assert lengths(found) == {"a": 4, "b": 0}
    assert reasons(found) == {"nobody": "unregistered"}


def test_an_unverified_profile_is_marked_and_left_out_on_request() -> None:
    world = World()
    unknown = PROFILE.model_copy(update={"revision": None})
    hook, other = world.join("w0", profile=unknown), world.join("w1")
    chain = chain_of(TOKENS, profile=unknown)
    hook.store(chain[:4])
    other.store(CHAIN[:2])
    world.round(hook, other)
    found = world.get(token_ids=TOKENS, profile="tiny")
    assert {m.worker: (m.matched_blocks, m.identity) for m in found.matches} == {
        "w0": (4, "unverified"),
        "w1": (2, "verified"),
    }
    found = world.get(token_ids=TOKENS, profile="tiny", identity="verified")
    assert (lengths(found), reasons(found)) == ({"w1": 2}, {"w0": "profile_incomplete"})


def test_adapters_have_names_of_their_own() -> None:
    world = World()
    tuned = PROFILE.model_copy(update={"adapter": "a1", "adapter_revision": "1"})
    hook = world.join("w0", profile=tuned)
    chain = chain_of(TOKENS, profile=tuned)
    hook.store(chain[:4])
    world.view.caught_up = True
    world.round(hook)
    assert lengths(world.get(token_ids=TOKENS, profile="tiny", adapter="a1")) == {"w0": 4}
    assert world.refused(token_ids=TOKENS, profile="tiny").status == 404


def test_an_unknown_profile_is_404_and_503_while_the_log_is_still_read() -> None:
    world = World()
    world.round(world.join())
    assert world.refused(CHAIN, profile="unheard").kind is ProblemKind.INDEX_UNAVAILABLE
    world.view.caught_up = True
    refusal = world.refused(CHAIN, profile="unheard")
    assert (refusal.status, refusal.kind) == (404, ProblemKind.PROFILE_UNKNOWN)


def gap(hook: Hook) -> None:
    hook.builder.burn()
    hook.store([block("after the hole")])


def unread(hook: Hook) -> None:
    hook.world.join("later", start=False)


def quarantined(hook: Hook) -> None:
    hook.builder.prev = bytes(32)
    hook.store([block("of another chain")])


def shed(hook: Hook) -> None:
    hook.world.view.limits = ViewLimits(max_copies=0)
    hook.store([block("too many")])


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [(gap, "gap"), (unread, "unopened"), (quarantined, "quarantined"), (shed, "gap")],
)
def test_a_profile_that_an_unknown_stream_may_have_declared_is_not_404(trouble: Any, reason: str) -> None:
    world = World()
    well, ill = world.join("well"), world.join("ill")
    world.view.caught_up = True
    world.round(well, ill)
    assert world.refused(CHAIN, profile="unheard").kind is ProblemKind.PROFILE_UNKNOWN
    trouble(ill)
    world.round(well, ill)
    left_out = "later" if trouble is unread else "ill"
    found = world.get(CHAIN, profile="unheard")
    assert (found.matches, found.complete, reasons(found)) == ([], False, {left_out: reason})
    for more in ({"on_stale": "fail"}, {"min_coverage": found.coverage.eligible}):
        refusal = world.refused(CHAIN, profile="unheard", **more)
        assert refusal.kind is ProblemKind.STALENESS_BOUND_UNMET
        assert refusal.lagging is not None
        assert [lagging.worker for lagging in refusal.lagging] == [left_out]
    alone = world.get(CHAIN, profile="unheard", candidates=["well"])
    assert ([match.matched_blocks for match in alone.matches], alone.complete) == ([0], True)


@pytest.mark.parametrize(
    "more", [{}, {"on_stale": "include", "max_staleness_ms": 1_000}, {"consistency": "any"}]
)
def test_a_profile_that_an_announced_and_unread_record_may_declare_is_not_404(more: dict[str, Any]) -> None:
    world = World()
    hook, other = world.join(), world.join("other")
    world.view.caught_up = True
    world.round(hook, other)
    world.wait(5_000)
    world.round(other)
    assert world.refused(CHAIN, profile="unheard", **more).kind is ProblemKind.PROFILE_UNKNOWN
    hook.hold = True
    hook.store(CHAIN[:1])
    hook.pulse()
    found = world.get(CHAIN, profile="unheard", **more)
    assert found.matches == []
    hook.release()
    assert world.refused(CHAIN, profile="unheard", **more).kind is ProblemKind.PROFILE_UNKNOWN


def test_a_reader_that_hears_of_nobody_knows_no_profile_to_be_undeclared() -> None:
    """Cut off from the log it would have read no declaration."""
    world = World()
    hook = world.join()
    world.view.caught_up = True
    world.round(hook)
    world.wait(5_000)
    assert world.refused(CHAIN, profile="unheard").kind is ProblemKind.STALENESS_BOUND_UNMET
    late = world.get(CHAIN, profile="unheard", consistency="any")
    assert (late.matches, late.staleness_ms) == ([], 5_000)
    world.round(hook)
    assert world.refused(CHAIN, profile="unheard").kind is ProblemKind.PROFILE_UNKNOWN


def test_without_any_worker_a_profile_is_unknown_while_kv_control_is_current() -> None:
    world = World()
    world.view.caught_up = True
    assert world.refused(CHAIN, profile="unheard").kind is ProblemKind.PROFILE_UNKNOWN
    world.control_ns = world.now_ns
    world.wait(5_000)
    assert world.refused(CHAIN, profile="unheard").kind is ProblemKind.STALENESS_BOUND_UNMET


def test_a_limit_never_cuts_off_a_candidate() -> None:
    world = World()
    hooks = [world.join(f"w{n}") for n in range(4)]
    for count, hook in enumerate(hooks):
        hook.store(CHAIN[:count])
    world.round(*hooks)
    named = ["w0", "w1", "w2", "nobody"]
    found = world.get(CHAIN, candidates=named, limit=1)
    assert {m.worker for m in found.matches} | {e.worker for e in found.excluded} == set(named)
    assert lengths(world.get(CHAIN, limit=1)) == {"w3": 3}


def test_an_answer_that_a_limit_cut_claims_no_absence() -> None:
    world = World()
    hooks = [world.join(f"w{n}") for n in range(3)]
    for count, hook in enumerate(hooks):
        hook.store(CHAIN[:count])
    world.round(*hooks)
    assert [world.get(CHAIN, limit=limit).complete for limit in (1, 2, 3)] == [False, True, True]


def test_a_retired_profile_voids_its_copies() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    hook.write(events=[ProfileRetired(profile=0)])
    hook.copies.clear()
    world.round(hook)
    found = world.get(CHAIN)
    assert (found.matches, found.complete) == ([], True)


def test_domains_never_meet() -> None:
    world = World(domains=[("acme", "acme")])
    hook = world.join()
    hook.store(CHAIN[:4])
    world.round(hook)
    world.view.caught_up = True
    assert world.refused(CHAIN, domain="acme").kind is ProblemKind.PROFILE_UNKNOWN
    assert world.refused(token_ids=TOKENS, domain="acme").status == 404
    assert world.refused(CHAIN, domain="nobody").status == 403


def test_more_blocks_than_the_limit_are_refused_with_the_limit() -> None:
    world = World(limits=ViewLimits(max_blocks=10))
    world.round(world.join())
    for refusal in (world.refused(CHAIN[:11]), world.refused(token_ids=TOKENS[:176])):
        assert (refusal.status, refusal.limit) == (413, 10)
    assert world.get(CHAIN[:10]).complete


# --- deletions


def deletion(world: World, scope: Any) -> int:
    return world.order(DeletionRequested(scope=scope, requester="t"))


def test_a_deletion_hides_at_once_until_the_holders_own_ack() -> None:
    world = World()
    a, b = world.join("a"), world.join("b")
    a.store(CHAIN[:4])
    b.store(CHAIN[:6])
    world.round(a, b)
    number = deletion(world, DomainScope(domain="default"))
    assert world.get(CHAIN).matches == []
    done = RequestStanding(request=number, removed=4, old_left=0)
    a.evict(CHAIN[:4])
    a.write(events=[Ack(requests=(done,))])
    a.store(CHAIN[:1])
    world.round(a, b)
    assert lengths(world.get(CHAIN)) == {"a": 1}
    b.write(events=[Ack(requests=(RequestStanding(request=number, removed=3, old_left=3),))])
    world.round(a, b)
    assert lengths(world.get(CHAIN)) == {"a": 1}
    b.write(events=[Refused(request=number, reason="no_delete_path", cure="restart")])
    world.round(a, b)
    assert lengths(world.get(CHAIN)) == {"a": 1}


def test_a_prefix_scope_hides_itself_and_what_continues_it() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:10])
    world.round(hook)
    deletion(world, PrefixScope(domain="default", ids=tuple(CHAIN[:5])))
    assert lengths(world.get(CHAIN)) == {"w0": 4}


def test_a_profile_scope_hides_only_its_profile() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:10])
    world.round(hook)
    deletion(world, ProfileScope(profile=bytes(32)))
    assert lengths(world.get(CHAIN)) == {"w0": 10}


def test_a_new_epoch_owes_the_ack_again() -> None:
    world = World()
    old = world.join()
    number = deletion(world, DomainScope(domain="default"))
    old.write(events=[Ack(requests=(RequestStanding(request=number, removed=0, old_left=0),))])
    new = world.join(epoch="e2")
    new.store(CHAIN[:3])
    world.round(new)
    assert world.get(CHAIN).matches == []
    new.write(events=[Ack(requests=(RequestStanding(request=number, removed=0, old_left=0),))])
    world.round(new)
    assert lengths(world.get(CHAIN)) == {"w0": 3}


# --- tokens


def test_tokens_of_another_log_and_ahead_of_this_replica() -> None:
    world = World()
    world.round(world.join())
    mine = world.get(CHAIN).token
    assert world.get(CHAIN, min_token=mine).token == mine
    foreign = Token("other", (), 0).encode()
    assert world.refused(CHAIN, min_token=foreign).kind is ProblemKind.TOKEN_FOREIGN
    ahead = Token("log-test", (99,), 0).encode()
    assert world.refused(CHAIN, min_token=ahead).kind is ProblemKind.TOKEN_AHEAD
    assert world.refused(CHAIN, min_token="kvt1.%%").status == 400


# --- tiers and groups


def test_tiers_are_cumulative() -> None:
    world = World()
    hook = world.join("w0", 0, "e1", Tier.GPU, Tier.CPU, Tier.REMOTE)
    hook.store(CHAIN[:2])
    hook.store(CHAIN[2:5], parent=CHAIN[1], holder="cpu")
    hook.store(CHAIN[5:6], parent=CHAIN[4])
    hook.store(CHAIN[6:9], parent=CHAIN[5], holder="remote")
    world.round(hook)
    match = world.get(CHAIN).matches[0]
    assert asdict(match.tiers) == {"gpu": 32, "cpu": 96, "disk": 96, "remote": 144}
    assert match.matched_tokens == 144


def test_a_move_between_tiers_and_a_second_copy_keep_the_union_right() -> None:
    world = World()
    hook = world.join("w0", 0, "e1", Tier.GPU, Tier.CPU)
    hook.store(CHAIN[:4])
    hook.store(CHAIN[:2], holder="cpu")
    hook.evict(CHAIN[:1])
    hook.write(events=[TierChanged(from_holder="gpu", to_holder="cpu", group=0, ids=(CHAIN[3],))])
    hook.copies["gpu", 0].discard(CHAIN[3])
    hook.copies["cpu", 0].add(CHAIN[3])
    world.round(hook)
    match = world.get(CHAIN).matches[0]
    assert (match.tiers.gpu, match.tiers.cpu) == (0, 64)
    hook.evict([CHAIN[1]])
    hook.evict([CHAIN[1]], holder="cpu")
    world.round(hook)
    assert world.get(CHAIN).matches[0].tiers.cpu == 16


def test_a_sliding_window_needs_only_its_last_blocks() -> None:
    groups = (
        Group(index=0, kind=GroupKind.FULL, block_tokens=16),
        Group(index=1, kind=GroupKind.SLIDING_WINDOW, block_tokens=16, window=32),
    )
    world = World()
    hook = world.join(groups=groups)
    hook.store(CHAIN[:10])
    hook.store(CHAIN[4:7], parent=CHAIN[3], group=1)
    hook.store(CHAIN[9:10], parent=CHAIN[8], group=1)
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 7}


def test_groups_of_other_block_sizes_are_asked_by_tokens_only() -> None:
    groups = (
        Group(index=0, kind=GroupKind.FULL, block_tokens=16),
        Group(index=1, kind=GroupKind.RECURRENT, block_tokens=32),
    )
    world = World()
    hook, plain = world.join(groups=groups), world.join("w1")
    hook.store(CHAIN[:10])
    hook.store([chain_of(TOKENS, size=32)[2]], parent=chain_of(TOKENS, size=32)[1], group=1)
    world.round(hook, plain)
    assert world.get(token_ids=TOKENS).matches[0].matched_tokens == 96
    assert reasons(world.get(CHAIN)) == {"w0": "profile_incomplete"}


def test_load_and_layout_travel_with_the_match() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    world.beacon()
    hook.pulse(load=Load(running=3, waiting=1, kv_used=0.5))
    match = world.get(CHAIN, requester_layout={"tp_size": 2}).matches[0]
    assert match.load == Load(running=3, waiting=1, kv_used=0.5)
    assert match.transfer_compatible is False
    same = world.get(CHAIN, requester_layout=LayoutProfile().model_dump()).matches[0]
    assert same.transfer_compatible is True


# --- robustness


def test_garbage_harms_nobody() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    for garbage in (b"", b"\xff\x00", b"{}", b'{"v":99}', b"[" * 10_000, b"{}\n{}"):
        world.deliver(garbage)
        world.view.apply_pulse(garbage, world.now_ns)
        world.view.apply_quota(garbage)
    world.view.apply_signal(0, b"garbage", world.now_ns)
    world._signals = 1
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 4}


def test_redelivered_records_change_nothing() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    world.round(hook)
    before = world.get(CHAIN)
    assert world.view.apply_record(0, 0, hook.builder.sent[0].value, world.now_ns) is None
    for record in hook.builder.sent:
        world.deliver(record.value)
    after = world.get(CHAIN)
    assert after.model_dump(exclude={"token", "matches"}) == before.model_dump(exclude={"token", "matches"})
    assert lengths(after) == lengths(before)


def test_a_record_that_lost_its_content_puts_its_own_stream_out() -> None:
    world = World()
    a, b = world.join("a"), world.join("b")
    a.store(CHAIN[:4])
    b.store(CHAIN[:4])
    record = b.builder.seal(parts=[(b.alias(), [])])
    world.deliver(record.value.replace(b'{"events":[]}', b'{"events":[1]}'))
    world.round(a, b)
    assert reasons(world.get(CHAIN)) == {"b": "quarantined"}


def test_above_the_memory_bound_a_stream_is_shed_and_lowers_the_coverage() -> None:
    world = World(limits=ViewLimits(max_copies=10))
    a, b = world.join("a"), world.join("b")
    a.store(CHAIN[:8])
    b.store(CHAIN[:8])
    world.round(a, b)
    found = world.get(CHAIN)
    assert (lengths(found), reasons(found), found.complete) == ({"a": 8}, {"b": "gap"}, False)
    assert world.view.copies == 8
    assert world.view.counters.shed == 1


def test_a_partition_that_lost_records_puts_its_streams_in_gap() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    world.round(hook)
    world.view.partition_lost(0, 100)
    refusal = world.refused(CHAIN)
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "gap"


def test_before_kv_control_is_read_the_index_is_unavailable() -> None:
    world = World()
    world.round(world.join())
    world.view.control_current_ns = lambda: None
    assert world.refused(CHAIN).kind is ProblemKind.INDEX_UNAVAILABLE


@pytest.mark.parametrize("tier", [*Tier])
def test_one_tier_alone_counts_from_its_own_place_on(tier: Tier) -> None:
    world = World()
    hook = world.join("w0", 0, "e1", tier)
    hook.store(CHAIN[:4], holder=tier.value)
    world.round(hook)
    tokens = asdict(world.get(CHAIN).matches[0].tiers)
    assert list(tokens.values()) == [0] * [*Tier].index(tier) + [64] * (4 - [*Tier].index(tier))
    same = world.get(CHAIN, requester_layout={"tp_size": 2}).matches[0]
    assert asdict(same.tiers) == tokens


def test_an_answer_that_speaks_for_nobody_is_not_bounded() -> None:
    world = World()
    hook = world.join()
    world.round(hook)
    assert answer_headers(world.get(CHAIN), 1_000)[CONSISTENCY_HEADER] == "bounded"
    world.wait(5_000)
    found = world.get(CHAIN, min_coverage=0)
    assert found.coverage.included == 0
    assert answer_headers(found, 1_000)[CONSISTENCY_HEADER] == "any"
