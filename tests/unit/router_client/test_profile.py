"""Profiles, adapters and domains: whose copies a question is about, and when one may be called unknown."""

from __future__ import annotations

from typing import Any

import pytest

from events.model.part import ProfileRetired
from router_client.limit import ViewLimits
from router_client.problem import ProblemKind
from tests.support.log import PROFILE, block
from tests.support.reader_world import Hook, World, chain_of, lengths, reasons

TOKENS = list(range(640))
CHAIN = chain_of(TOKENS)


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
