"""What open orders hide equals the definition, whatever the order of orders and acks, and costs only while open."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from events.identity import profile_digest
from events.model.control import (
    DeletionRequested,
    DomainScope,
    IdsScope,
    PrefixScope,
    ProfileScope,
    SubjectScope,
    TenantScope,
)
from events.model.part import Ack, Refused, RequestStanding
from events.scope import covers_domain, visible_length
from tests.support.log import PROFILE
from tests.support.reader_world import Hook, World, chain_of, lengths

CHAIN = chain_of(range(320))
ROUNDS = 40


def some_scope(chance: random.Random) -> Any:
    cut = chance.randrange(1, len(CHAIN) + 1)
    return chance.choice(
        [
            DomainScope(domain="default"),
            DomainScope(domain="acme"),
            TenantScope(tenant="default"),
            TenantScope(tenant="acme"),
            SubjectScope(domain="default", subject="x"),
            SubjectScope(domain="default", subject="x", pseudonym=bytes(32), leaves=(CHAIN[cut - 1],)),
            PrefixScope(domain="default", ids=tuple(CHAIN[:cut])),
            PrefixScope(domain="default", ids=tuple(CHAIN[:cut])),
            IdsScope(domain="default", ids=(CHAIN[cut - 1],)),
            ProfileScope(profile=bytes(32)),
            ProfileScope(profile=bytes.fromhex(profile_digest(PROFILE))),
        ]
    )


def defined_length(world: World, hook: Hook) -> int:
    """Blocks that no order hides on the hook's stream, from the definition, over all orders."""
    (state,) = [s.state for s in world.view.streams.values() if s.key.worker == hook.builder.worker]
    length = len(CHAIN)
    for order in world.registry.deletions.values():
        standing = state.standings.get((hook.alias(), order.number))
        discharged = standing is not None and standing.discharged
        if not discharged and covers_domain(order.scope, "default", world.registry.owner("default")):
            length = min(length, visible_length(order.scope, "default", CHAIN, profile_digest(PROFILE)))
    return length


@pytest.mark.parametrize("seed", range(12))
def test_what_is_hidden_equals_the_definition(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    hooks = [world.join("a"), world.join("b")]
    for hook in hooks:
        hook.store(CHAIN)
    numbers: list[int] = []
    for _ in range(ROUNDS):
        step = chance.random()
        hook = chance.choice(hooks)
        if step < 0.3 or not numbers:
            numbers.append(world.order(DeletionRequested(scope=some_scope(chance), requester="t")))
        elif step < 0.4:
            number = chance.choice(numbers)
            hook.write(events=[Refused(request=number, reason="engine_error", cure="restart")])
        else:
            # An ack may also name an order that this reader hasn't read, or one of another domain.
            named = chance.sample([*numbers, numbers[-1] + 1], k=min(len(numbers), 3))
            left = chance.choice([0, 0, 0, 1])
            stated = tuple(RequestStanding(request=n, removed=0, old_left=left) for n in named)
            hook.write(events=[Ack(requests=stated)])
        world.round(*hooks)
        if chance.random() < 0.7:
            expected = {h.builder.worker: defined_length(world, h) for h in hooks}
            found = lengths(world.get(CHAIN, candidates=["a", "b"]))
            assert found == expected


def test_ten_thousand_discharged_orders_cost_a_lookup_nothing() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN)
    world.round(hook)
    bare_s = quickest_s(world)
    world.registry.verify = lambda key, signature, line: True
    numbers = [
        world.order(
            DeletionRequested(scope=PrefixScope(domain="default", ids=(CHAIN[at % 20],)), requester="t")
        )
        for at in range(10_000)
    ]
    world.round(hook)
    assert lengths(world.get(CHAIN, candidates=["w0"])) == {"w0": 0}
    for at in range(0, len(numbers), 500):
        done = tuple(RequestStanding(request=n, removed=0, old_left=0) for n in numbers[at : at + 500])
        hook.write(events=[Ack(requests=done)])
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 20}
    assert quickest_s(world) < 3 * bare_s


def quickest_s(world: World) -> float:
    """The best of many lookups: what it takes when nothing else runs."""
    best = float("inf")
    for _ in range(100):
        begun = time.perf_counter()
        world.get(CHAIN)
        best = min(best, time.perf_counter() - begun)
    return best
