"""The view's index follows the fold exactly, whatever the log holds, and a restored view is the same view."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from events.fold.digest import index_digest
from events.fold.registry import Registry
from events.fold.state import StreamState
from events.ids import CopyState, Inventory, StreamKey, Tier, Unit
from events.keyring import KeyRing
from events.model.control import LimitSet
from events.model.part import (
    CopyRun,
    HolderInventory,
    ProfileDeclared,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
)
from events.signing import verify
from router_client.limit import ViewLimits
from router_client.view import LocalView
from tests.support.log import HIGH, LOW, PROFILE, ControlLog, opened
from tests.support.random_log import RandomLog
from tests.support.reader_world import World, chain_of, lengths, reasons
from tests.support.store_contract import fold


def empty_view(limits: ViewLimits | None = None) -> LocalView:
    return LocalView(
        reader="r",
        registry=Registry(verify),
        keyring=KeyRing({}),
        control_current_ns=lambda: 0,
        limits=limits or ViewLimits(),
    )


def check_index(view: LocalView) -> None:
    """Every bit is held by exactly the committed copies of its sources, and no block is left over."""
    while not view.work(1_000):
        pass
    wanted: dict[bytes, int] = defaultdict(int)
    for stream in view.streams.values():
        if stream.layout is None:
            continue
        for bit, sources in stream.layout.sources.items():
            for where in sources:
                for block, (_, attributes) in stream.state.copies.get(where, {}).items():
                    if attributes.state is CopyState.COMMITTED:
                        wanted[block] |= bit
    held = {block: view.index.holds(block) for block in view.index._resident}
    if view.index.conflicts == 0:
        assert held == dict(wanted)
    else:
        assert all(mask & ~wanted[block] == 0 for block, mask in held.items())


def check_rooted(view: LocalView) -> None:
    """`rooted` is what the definition says, recomputed from scratch."""
    index = view.index
    for block, parent in index._parent.items():
        above = -1 if parent == bytes(16) else index._rooted.get(parent, 0)
        assert index._rooted.get(block, 0) == index._resident[block] & above


@pytest.mark.parametrize("seed", range(25))
def test_the_index_follows_the_fold_of_any_log(seed: int) -> None:
    view = empty_view()
    log = RandomLog(random.Random(seed))
    read = []
    for record in log.records(150):
        read.append(record)
        view.apply_record(record.partition, record.offset, record.value, 0)
        if len(read) % 15 == 0:
            check_index(view)
            check_rooted(view)
    states = fold(read)
    mine = [stream.state for stream in view.streams.values()]
    assert index_digest(mine, view.registry) == index_digest(states.values(), view.registry)
    assert view.copies == sum(state.copy_count() for state in states.values())


@pytest.mark.parametrize("seed", range(8))
def test_a_restored_view_goes_on_as_if_it_had_read_everything(seed: int) -> None:
    log = RandomLog(random.Random(1_000 + seed))
    records = list(log.records(160))
    whole = empty_view()
    for record in records:
        whole.apply_record(record.partition, record.offset, record.value, 0)
    restored = empty_view()
    states: dict[StreamKey, StreamState] = fold(records[:80])
    restored.restore([(0, state) for state in states.values()], {0: records[79].offset + 1})
    check_index(restored)
    for record in records[60:]:
        restored.apply_record(record.partition, record.offset, record.value, 0)
    check_index(restored)
    check_rooted(restored)
    assert index_digest([s.state for s in restored.streams.values()], restored.registry) == index_digest(
        [s.state for s in whole.streams.values()], whole.registry
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_memory_bound_holds_for_any_log(seed: int) -> None:
    view = empty_view(ViewLimits(max_copies=30, max_strangers=2))
    for record in RandomLog(random.Random(2_000 + seed)).records(150):
        view.apply_record(record.partition, record.offset, record.value, 0)
        assert view.copies <= 30
        assert view.copies == sum(s.state.copy_count() for s in view.streams.values())
    assert len(view.streams) <= 2
    check_index(view)


def test_a_shed_stream_comes_back_with_its_snapshot_when_there_is_room() -> None:
    chain = chain_of(range(640))
    world = World(limits=ViewLimits(max_copies=20))
    a, b = world.join("a"), world.join("b")
    a.store(chain[:15])
    b.store(chain[:12])
    world.round(a, b)
    assert reasons(world.get(chain)) == {"b": "gap"}
    a.evict(chain[5:15])
    b.evict(chain[10:12])
    b.write(
        SnapshotBegin(snapshot="s", opened=opened()),
        events=[ProfileDeclared(profile=0, content=PROFILE, block_bytes=(100,))],
    )
    run = CopyRun(profile=0, ids=tuple(chain[:10]), parents=(bytes(16), *chain[:9]))
    b.write(
        SnapshotRange(snapshot="s", holder="gpu", group=0, low=LOW, high=HIGH),
        events=[SnapshotPart(runs=(run,))],
    )
    known = HolderInventory(holder="gpu", inventory=Inventory.KNOWN)
    b.write(SnapshotEnd(snapshot="s", inventories=(known,)))
    world.round(a, b)
    found = world.get(chain)
    assert (lengths(found), found.complete) == ({"a": 5, "b": 10}, True)


def test_quota_states_are_shown_for_the_domains_owner() -> None:
    world = World()
    world.round(world.join())
    world.order(LimitSet(tenant="default", tier=Tier.GPU, unit=Unit.BLOCKS, soft=1, hard=2))
    for term, level in ((5, "over_hard_limit"), (3, "within")):
        world.view.apply_quota(
            b'{"v":1,"tenant":"default","tier":"gpu","unit":"blocks","used":3,"soft":1,"hard":2,'
            b'"level":"%s","term":%d}' % (level.encode(), term)
        )
    state = world.get(chain_of(range(640))).quota_state
    assert state is not None
    assert [(s.tier.value, s.unit.value, s.level.value) for s in state] == [
        ("gpu", "blocks", "over_hard_limit")
    ]


def test_an_unauthorised_registration_voids_nothing() -> None:
    world = World()
    hook = world.join()
    chain = chain_of(range(640))
    hook.store(chain[:4])
    world.round(hook)
    foreign = ControlLog(log="other")
    world.log.records.append(foreign.records[foreign.register("w0", 0, "e2")])
    world.follow_control()
    assert world.registry.ignored["foreign_log"] == 1
    assert len(world.get(chain).matches) == 1
