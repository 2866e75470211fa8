"""Durable holders that several streams reach: one owner's word counts, for everybody who reaches the store."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from events.ids import Capability, GroupKind, Inventory, Role, StreamStatus, Tier
from events.model.control import Fenced, HolderDestroyed, HolderEnrolled
from events.model.part import BlockEvicted, Group, HolderDeclared, Opened, ProfileDeclared
from events.model.profile import LayoutProfile
from router_client.wire import Answer
from tests.support.log import PROFILE
from tests.support.reader_world import Hook, World, chain_of, lengths

STORE = "store-1"
ANY_LAYOUT = LayoutProfile()
IDS = chain_of(range(96))
ONE_GROUP = (Group(index=0, kind=GroupKind.FULL, block_tokens=16),)


def join(
    world: World, worker: str, epoch: str, *, layout: LayoutProfile = ANY_LAYOUT, gpu: bool = True
) -> Hook:
    """A stream with a GPU and the shared store."""
    hook = world.join(worker, 0, epoch, start=False)
    holders = [
        HolderDeclared(name="gpu", tier=Tier.GPU, groups=ONE_GROUP, inventory=Inventory.EMPTY),
        HolderDeclared(
            name="shared", tier=Tier.REMOTE, durable_id=STORE, groups=ONE_GROUP, inventory=Inventory.KNOWN
        ),
    ]
    start = Opened(
        engine_life=f"life-{epoch}",
        engine="test",
        engine_version="1",
        removal=Capability.EVICT_BLOCKS,
        admission_known=True,
        holders=tuple(holders if gpu else holders[1:]),
    )
    hook.write(start, events=[ProfileDeclared(profile=0, content=PROFILE, layout=layout, block_bytes=(100,))])
    return hook


def enrol(world: World, owner: str) -> None:
    world.order(HolderEnrolled(durable_id=STORE, tier=Tier.REMOTE, owner=owner), Role.ENROLMENT)


def fence(world: World, hook: Hook) -> None:
    b = hook.builder
    world.order(Fenced(worker=b.worker, rank=b.rank, epoch=b.epoch, evidence="operator"))


def settled(world: World, ids: Sequence[bytes] = IDS, **more: object) -> Answer:
    while not world.view.work(1_000):
        pass
    return world.get(ids, **more)


def two() -> tuple[World, Hook, Hook]:
    """A store that w0 owns and w1 reaches; w0 holds four blocks there, w1 two of them on its GPU."""
    world = World()
    enrol(world, "w0")
    owner, other = join(world, "w0", "e0"), join(world, "w1", "e1")
    owner.store(IDS[:4], holder="shared")
    other.store(IDS[:2])
    world.round(owner, other)
    return world, owner, other


def test_whoever_reaches_the_store_is_credited_with_what_its_owner_holds_there() -> None:
    world, _, _ = two()
    found = {match.worker: match.tiers for match in settled(world).matches}
    assert (found["w0"].gpu, found["w0"].remote) == (0, 64)
    assert (found["w1"].gpu, found["w1"].disk, found["w1"].remote) == (32, 32, 64)


def test_what_others_report_of_the_store_is_credited_to_nobody() -> None:
    world, owner, other = two()
    other.store(IDS[4:], IDS[3], holder="shared")
    other.evict(IDS[:1], holder="shared")
    world.round(owner, other)
    assert lengths(settled(world)) == {"w0": 4, "w1": 4}
    reported = {key.worker: view.state.copies["shared", 0] for key, view in world.view.streams.items()}
    assert (set(reported["w0"]), set(reported["w1"])) == (set(IDS[:4]), set(IDS[4:]))


def test_an_eviction_by_the_owner_is_an_eviction_for_everybody() -> None:
    world, owner, other = two()
    owner.evict(IDS[1:3], holder="shared")
    world.round(owner, other)
    assert lengths(settled(world)) == {"w0": 1, "w1": 2}


def test_without_an_owner_nobody_is_credited_and_absence_is_not_claimed() -> None:
    world = World()
    hook = join(world, "w0", "e0")
    hook.store(IDS[:4], holder="shared")
    world.round(hook)
    answer = settled(world)
    assert (lengths(answer), answer.complete) == ({}, False)
    enrol(world, "w0")
    answer = settled(world)
    assert (lengths(answer), answer.complete) == ({"w0": 4}, True)
    world.order(HolderDestroyed(durable_id=STORE, evidence="shredded"), Role.SUPERVISOR)
    assert lengths(settled(world)) == {}


def test_an_owner_that_stands_is_not_replaced_and_a_fenced_one_is() -> None:
    world, owner, other = two()
    enrol(world, "w1")
    assert world.registry.ignored["owner_stands"] == 1
    fence(world, owner)
    assert lengths(settled(world)) == {"w1": 2}
    assert not settled(world).complete
    enrol(world, "w1")
    other.store(IDS[:3], holder="shared")
    world.round(other)
    assert lengths(settled(world)) == {"w1": 3}


def test_a_later_epoch_of_the_owner_speaks_for_the_store() -> None:
    world, _, other = two()
    again = join(world, "w0", "e9")
    world.round(again, other)
    assert lengths(settled(world)) == {"w1": 2}
    again.store(IDS[:6], holder="shared")
    world.round(again, other)
    assert lengths(settled(world)) == {"w0": 6, "w1": 6}


def test_staleness_is_the_worse_of_both_and_a_stale_owner_lends_nothing() -> None:
    world, owner, other = two()
    world.wait(600)
    world.round(other)
    found = {match.worker: match for match in settled(world).matches}
    assert found["w1"].staleness_ms == pytest.approx(600)
    assert settled(world).staleness_ms == pytest.approx(600)
    narrow = settled(world, max_staleness_ms=500)
    assert (lengths(narrow), narrow.complete) == ({"w1": 2}, False)
    assert {e.worker for e in narrow.excluded} == {"w0"}
    alone = settled(world, max_staleness_ms=1_000, candidates=["w1"])
    assert alone.staleness_ms == pytest.approx(600)
    world.round(owner, other)
    assert lengths(settled(world, max_staleness_ms=500)) == {"w0": 4, "w1": 4}


def test_a_hole_in_the_owners_stream_takes_the_store_from_everybody() -> None:
    world, owner, other = two()
    owner.builder.burn()
    owner.store(IDS[4:], IDS[3], holder="shared")
    world.round(owner, other)
    assert lengths(settled(world)) == {"w1": 2}


def test_bytes_of_another_shape_are_not_credited() -> None:
    world = World()
    enrol(world, "w0")
    owner, other = join(world, "w0", "e0"), join(world, "w1", "e1", layout=LayoutProfile(tp_size=2))
    owner.store(IDS[:4], holder="shared")
    other.store(IDS[:1])
    world.round(owner, other)
    assert lengths(settled(world)) == {"w0": 4, "w1": 1}


@pytest.mark.parametrize("seed", range(8))
def test_credits_equal_a_naive_count_whatever_happens_to_owner_and_reachers(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    hooks = {name: join(world, name, f"{name}-0") for name in ("w0", "w1", "w2")}
    owner = ""
    epochs = 0
    for _ in range(60):
        name = rng.choice(list(hooks))
        hook, act = hooks[name], rng.random()
        holder = rng.choice(("gpu", "shared"))
        if act < 0.5:
            start = rng.randrange(len(IDS))
            ids = IDS[start : start + rng.randint(1, 4)]
            hook.store(ids, IDS[start - 1] if start else None, holder=holder)
        elif act < 0.8:
            hook.write(events=[BlockEvicted(holder=holder, group=0, ids=(rng.choice(IDS),))])
        elif act < 0.9:
            epochs += 1
            hooks[name] = join(world, name, f"{name}-e{epochs}", gpu=True)
        else:
            wanted = rng.choice(list(hooks))
            before = world.registry.ignored["owner_stands"]
            enrol(world, wanted)
            owner = wanted if world.registry.ignored["owner_stands"] == before else owner
        while not world.view.work(1_000):
            pass
        states = {key.worker: view.state for key, view in world.view.streams.items()}
        assert all(state.status is StreamStatus.LIVE for state in states.values())
        store = set(states[owner].copies.get(("shared", 0), ())) if owner else set()
        found = {
            match.worker: match.tiers for match in world.get(IDS, consistency="any", min_coverage=0).matches
        }
        for worker, state in states.items():
            gpu = set(state.copies.get(("gpu", 0), ()))
            own = next((n for n, one in enumerate(IDS) if one not in gpu), len(IDS))
            with_store = next((n for n, one in enumerate(IDS) if one not in gpu | store), len(IDS))
            tiers = found.get(worker)
            assert (tiers.gpu // 16 if tiers else 0, tiers.remote // 16 if tiers else 0) == (own, with_store)


def test_that_the_store_adds_nothing_is_its_owners_word_too() -> None:
    world = World()
    enrol(world, "w0")
    owner, other = join(world, "w0", "e0"), join(world, "w1", "e1")
    world.round(owner, other)
    world.wait(450)
    world.round(other)
    found = settled(world, max_staleness_ms=500, candidates=["w1"])
    assert ([m.staleness_ms for m in found.matches], found.staleness_ms) == ([450], 450)
    assert found.complete
    assert settled(world, max_staleness_ms=500).matches == []
    world.wait(60_000)
    world.round(other)
    for more in ({"on_stale": "include", "max_staleness_ms": 500}, {"consistency": "any"}):
        found = settled(world, candidates=["w1"], **more)
        assert [m.staleness_ms for m in found.matches] == [60_450]
        assert found.staleness_ms == 60_450
    found = settled(world, candidates=["w1"], on_stale="include", max_staleness_ms=500)
    assert ([m.within_bound for m in found.matches], found.complete) == ([False], False)


@pytest.mark.parametrize("foreign_first", [True, False])
@pytest.mark.parametrize("server", ["another_store", "own_holder"])
def test_one_unusable_store_that_hides_what_another_serves_claims_no_absence(
    foreign_first: bool, server: str
) -> None:
    """Stores of a level are counted together: one that can't be used takes the others' credit with it."""
    world = World()
    enrol(world, "w0")
    world.order(HolderEnrolled(durable_id="store-2", tier=Tier.REMOTE, owner="w2"), Role.ENROLMENT)

    def opens(worker: str, stores: dict[str, str | None], layout: LayoutProfile) -> Hook:
        hook = world.join(worker, 0, f"e-{worker}", start=False)
        holders = [
            HolderDeclared(
                name=n, tier=Tier.REMOTE, durable_id=d, groups=ONE_GROUP, inventory=Inventory.KNOWN
            )
            for n, d in stores.items()
        ]
        start = Opened(
            engine_life=f"life-e-{worker}",
            engine="test",
            engine_version="1",
            removal=Capability.EVICT_BLOCKS,
            admission_known=True,
            holders=tuple(holders),
        )
        declares = ProfileDeclared(profile=0, content=PROFILE, layout=layout, block_bytes=(100,))
        hook.write(start, events=[declares])
        return hook

    foreign = opens("w0", {"shared": STORE}, LayoutProfile(tp_size=2))
    usable = opens("w2", {"shared": "store-2"}, ANY_LAYOUT)
    usable.store(IDS[:4], holder="shared")
    reached: dict[str, str | None] = {"x": STORE, "y": "store-2" if server == "another_store" else None}
    order = ("x", "y") if foreign_first else ("y", "x")
    asker = opens("w1", {name: reached[name] for name in order}, ANY_LAYOUT)
    if server == "own_holder":
        asker.store(IDS[:4], holder="y")
    world.round(foreign, usable, asker)
    found = settled(world, candidates=["w1"])
    assert (lengths(found), found.complete) == ({"w1": 0}, False)
    nothing = settled(world, chain_of(range(1_000, 1_096)), candidates=["w1"])
    assert (lengths(nothing), nothing.complete) == ({"w1": 0}, True)
