"""When an engine that can only be emptied whole is emptied: drained if it is in use, and not too often for a tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from events.fold.registry import Registry
from events.fold.registry_state import Deletion, Domain
from events.hooks.emptying import DRAINING_CURE, SERVING_CURE, Emptying
from events.hooks.engine_port import EnginePort, RefusalReason, ResetResult, Translator
from events.hooks.obey import Obedience, ObeyingHook
from events.hooks.obligation import Obligation, Obligations
from events.hooks.reset_queue import ResetPace
from events.hooks.reset_rate import WINDOW_S, ResetRate
from events.hooks.reset_turn import ResetTurns, Turn
from events.ids import Capability
from events.model.control import (
    ControlHeader,
    DeletionRequested,
    DomainScope,
    InvalidationRequested,
    ProfileScope,
    Scope,
    TenantScope,
)
from events.model.part import DomainEvent, Refused
from events.model.signal import ResetTurn
from events.signing import verify

PACE = ResetPace(drain_s=30.0, rest_s=10.0, per_hour=2)


class World:
    """One engine, alone in its fleet; `answers` are what its resets say, the last for ever."""

    def __init__(self, answers: Sequence[RefusalReason | None] = (None,)) -> None:
        self.now_s = 1_000.0
        self.draining = False
        self.resets = 0
        self.registry = Registry(verify)
        for tenant in ("acme", "beta"):
            self.registry.domains[tenant] = Domain(tenant, tenant, False, 0)
        self.obligations = Obligations(self.registry, ("acme", "beta"))
        self._answers = list(answers)
        turns = ResetTurns(self.registry, self._unasked, lambda: self.now_s, PACE)
        self.emptying = Emptying(
            self,
            cast(EnginePort, SimpleNamespace(reset=self._reset)),
            Turn(turns, ("w0", 0), lambda: None),
            self.obligations,
            pace=PACE,
            monotonic_s=lambda: self.now_s,
        )

    def order(self, scope: Scope, *, deletes: bool = True) -> Obligation:
        number = len(self.registry.deletions) + 10
        body = (
            DeletionRequested(scope=scope, requester="ops")
            if deletes
            else InvalidationRequested(scope=scope, requester="ops", reason="operator")
        )
        self.registry.deletions[number] = Deletion(number, body, cast(ControlHeader, None), bytes(32))
        return self.obligations.installed()[-1]

    async def emptied(self, *owed: Obligation) -> bool:
        """Whether a reset was made now."""
        return self.emptying.allowed(owed) and (await self.emptying.empty(owed)).refused is None

    async def _reset(self, timeout_s: float) -> ResetResult:
        self.resets += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return ResetResult(answer)

    def _unasked(self, turn: ResetTurn) -> None:
        raise AssertionError("whoever is alone asks nobody")


async def test_an_idle_engine_is_emptied_at_once_and_never_drained() -> None:
    world = World()
    assert await world.emptied(world.order(TenantScope(tenant="acme")))
    assert (world.resets, world.draining, world.emptying.waits) == (1, False, "")


async def test_one_in_use_is_drained_until_its_requests_have_ended() -> None:
    world = World(["blocks_in_use", "blocks_in_use", None])
    order = world.order(TenantScope(tenant="acme"))
    for _ in range(2):
        assert world.emptying.allowed([order])
        result = await world.emptying.empty([order])
        assert (result.refused, world.draining) == ("blocks_in_use", True)
        assert "drained" in result.cure
        world.now_s += 1
    assert await world.emptied(order)
    assert not world.draining


async def test_one_whose_requests_never_end_serves_again_says_so_and_is_tried_later() -> None:
    world = World(["blocks_in_use"])
    order = world.order(TenantScope(tenant="acme"))
    assert not await world.emptied(order)
    world.now_s += PACE.drain_s
    assert world.emptying.allowed([order])
    result = await world.emptying.empty([order])
    assert (result.refused, world.draining) == ("blocks_in_use", False)
    assert "serves on" in result.cure
    assert not world.emptying.allowed([order])
    assert "did not end" in world.emptying.waits
    world.now_s += PACE.rest_s
    assert not await world.emptied(order)
    assert world.draining


@pytest.mark.parametrize("reason", ["engine_error", "no_delete_path", "not_authorised"])
async def test_an_engine_that_can_not_be_emptied_is_not_kept_drained(reason: RefusalReason) -> None:
    world = World(["blocks_in_use", reason])
    order = world.order(TenantScope(tenant="acme"))
    assert not await world.emptied(order)
    assert world.draining
    assert not await world.emptied(order)
    assert not world.draining


async def test_nothing_owed_any_more_ends_the_drain() -> None:
    world = World(["blocks_in_use"])
    assert not await world.emptied(world.order(TenantScope(tenant="acme")))
    world.emptying.rest()
    assert (world.draining, world.emptying.waits, world.emptying.cure) == (False, "", "")


async def test_a_tenant_waits_visibly_once_it_has_caused_its_share_and_goes_when_that_is_over() -> None:
    world = World()
    for _ in range(PACE.per_hour):
        assert await world.emptied(world.order(DomainScope(domain="acme")))
        world.now_s += 60
    third = world.order(TenantScope(tenant="acme"))
    assert not world.emptying.allowed([third])
    assert "2 resets within an hour" in world.emptying.waits
    told = world.emptying.cure
    assert "its tenant has caused 2 resets" in told
    world.now_s += 600
    assert not world.emptying.allowed([third])
    assert world.emptying.cure == told, "the log would be told again and again"
    world.now_s -= 600
    world.now_s += WINDOW_S - 120
    assert await world.emptied(third)
    assert world.resets == 3


async def test_a_limited_tenants_order_goes_along_with_anothers_reset_and_is_not_charged_for_it() -> None:
    world = World()
    for _ in range(PACE.per_hour):
        assert await world.emptied(world.order(TenantScope(tenant="acme")))
    waiting, other = world.order(TenantScope(tenant="acme")), world.order(TenantScope(tenant="beta"))
    assert not world.emptying.allowed([waiting])
    assert await world.emptied(waiting, other)
    world.now_s += WINDOW_S
    for _ in range(PACE.per_hour):
        assert await world.emptied(world.order(TenantScope(tenant="acme")))


async def test_nobody_is_charged_for_a_reset_that_was_not_made() -> None:
    world = World(["engine_error", "engine_error", "engine_error", None])
    order = world.order(TenantScope(tenant="acme"))
    for _ in range(3):
        assert not await world.emptied(order)
    assert await world.emptied(order)


@pytest.mark.parametrize("deletes", [True, False])
async def test_an_operators_order_over_everybody_and_an_invalidation_are_never_limited(deletes: bool) -> None:
    world = World()
    scope: Scope = ProfileScope(profile=bytes(32)) if deletes else TenantScope(tenant="acme")
    for _ in range(5):
        assert await world.emptied(world.order(scope, deletes=deletes))


async def test_an_engine_that_got_another_way_is_drained_no_longer_and_holds_no_turn() -> None:
    world = World(["blocks_in_use"])
    world.order(TenantScope(tenant="acme"))
    way = SimpleNamespace(capability=Capability.RESET, admission_known=False, reset=world._reset)
    told: list[str] = []
    hook = SimpleNamespace(ready=True, write=lambda parts: told.extend(refusals_of(parts)))
    translator = SimpleNamespace(
        inventory_known=lambda: True, in_scope=lambda *_: [], old=lambda *_, **__: iter(())
    )
    obedience = Obedience(
        cast(ObeyingHook, hook),
        cast(EnginePort, way),
        cast(Translator, translator),
        world.obligations,
        world.emptying,
    )
    assert not await obedience._settle()
    assert world.draining
    # It serves on after a while, and the log is told of that, too.
    world.now_s += PACE.drain_s
    assert not await obedience._settle()
    assert [cure in (DRAINING_CURE, SERVING_CURE) for cure in told] == [True, True]
    assert told[0] != told[-1]
    world.now_s += PACE.rest_s
    assert not await obedience._settle()
    assert world.draining
    way.capability = Capability.NONE
    assert await obedience._settle()
    assert not world.draining


def refusals_of(parts: Mapping[str, Sequence[DomainEvent]]) -> list[str]:
    """The cures of the first domain's refusals."""
    return [
        event.cure for events in list(parts.values())[:1] for event in events if isinstance(event, Refused)
    ]


def test_a_rate_forgets_what_is_an_hour_old() -> None:
    rate = ResetRate(2)
    rate.charge({"acme"}, 0.0)
    rate.charge({"acme"}, 100.0)
    assert rate.due_in_s(["acme"], 200.0) == WINDOW_S - 200.0
    assert rate.due_in_s(["beta"], 200.0) == 0.0
    assert rate.due_in_s(["acme"], WINDOW_S) == 0.0
    assert rate.due_in_s([], 0.0) == 0.0
