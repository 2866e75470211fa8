"""Streams with a hole, a break, a contradiction, garbage or too much: left out by name, and nobody else with them."""

from __future__ import annotations

from events.ids import Inventory
from events.model.part import (
    CopyRun,
    HolderInventory,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
    Statement,
)
from router_client.limit import ViewLimits
from router_client.problem import Problem
from tests.support.log import HIGH, LOW, block, declared, opened
from tests.support.reader_world import World, chain_of, lengths, reasons

TOKENS = list(range(640))
CHAIN = chain_of(TOKENS)


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
