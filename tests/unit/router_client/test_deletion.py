"""What an order to delete hides from answers: its scope, at once, until the holder's own ack."""

from __future__ import annotations

from typing import Any

from events.model.control import DeletionRequested, DomainScope, PrefixScope, ProfileScope
from events.model.part import Ack, Refused, RequestStanding
from tests.support.reader_world import World, chain_of, lengths

TOKENS = list(range(640))
CHAIN = chain_of(TOKENS)


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
