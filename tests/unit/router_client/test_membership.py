"""Who counts: ended engines don't, strangers can't push anybody out, and who obeys another log is left out."""

from __future__ import annotations

from dataclasses import asdict

from events.ids import Alarm, Role
from events.model.batch import ControlPosition
from events.model.control import DomainCreated, ExitAttested, Fenced
from events.model.part import Closed, Drained
from router_client.limit import ViewLimits
from tests.support.log import StreamBuilder, declared, opened, stored
from tests.support.reader_world import Hook, World, chain_of, lengths, reasons

CHAIN = chain_of(range(640))


def attest(world: World, hook: Hook) -> None:
    b = hook.builder
    world.order(
        ExitAttested(worker=b.worker, engine_life=f"life-{b.epoch}", attester="s", evidence="wait status"),
        Role.SUPERVISOR,
    )


def test_an_engine_whose_end_is_attested_is_not_waited_for() -> None:
    world = World()
    a, b = world.join("a"), world.join("b")
    a.store(CHAIN[:4])
    b.store(CHAIN[:6])
    world.round(a, b)
    attest(world, b)
    assert (str(world.get(CHAIN).coverage), lengths(world.get(CHAIN))) == ("1/1", {"a": 4})
    world.wait(10_000)
    world.round(a)
    found = world.get(CHAIN)
    assert found.complete
    assert reasons(found) == {"b": "fenced"}
    assert reasons(world.get(CHAIN, candidates=["a", "b"])) == {"b": "fenced"}
    assert all(stream.layout is None for stream in world.view.streams.values() if stream.key.worker == "b")


def test_the_next_life_of_an_ended_engine_counts() -> None:
    world = World()
    old = world.join("a")
    attest(world, old)
    new = world.join("a", 0, "e2")
    new.store(CHAIN[:2])
    world.round(new)
    found = world.get(CHAIN)
    assert (lengths(found), found.complete) == ({"a": 2}, True)


def stranger(number: int) -> StreamBuilder:
    return StreamBuilder(f"nobody-{number}", 0, "e1", 1, bytes(32))


def test_strangers_are_few_and_the_oldest_goes_first() -> None:
    world = World(limits=ViewLimits(max_streams=2, max_strangers=3))
    for number in range(50):
        world.deliver(stranger(number).seal(opened()).value)
    assert [key.worker for key in world.view.streams] == ["nobody-47", "nobody-48", "nobody-49"]
    a, b = world.join("a"), world.join("b")
    for hook in (a, b):
        hook.store(CHAIN[:4])
    world.round(a, b)
    assert lengths(world.get(CHAIN)) == {"a": 4, "b": 4}


def test_strangers_copies_go_before_anybody_is_shed() -> None:
    world = World(limits=ViewLimits(max_copies=20))
    for number in range(10):
        builder = stranger(number)
        world.deliver(builder.seal(opened()).value)
        world.deliver(builder.seal(events=[declared(), stored(CHAIN[number : number + 2])]).value)
    assert world.view.copies == 20
    hook = world.join()
    hook.store(CHAIN[:20])
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 20}
    assert world.view.counters.shed == 0


def test_a_stream_that_turns_out_to_be_registered_is_no_stranger() -> None:
    fleet = World()
    hook = fleet.join()
    hook.store(CHAIN[:3])
    behind = World(limits=ViewLimits(max_strangers=1))
    for record in hook.builder.sent:
        behind.deliver(record.value)
    behind.log.records = fleet.log.records
    behind.follow_control()
    behind.deliver(stranger(1).seal(opened()).value)
    behind.deliver(stranger(2).seal(opened()).value)
    assert {key.worker for key in behind.view.streams} == {"w0", "nobody-2"}


def test_a_stream_that_obeys_another_control_log_is_left_out_for_good() -> None:
    world = World()
    a, b = world.join("a"), world.join("b")
    number = world.order(DomainCreated(domain="other", tenant="other"))
    a.builder.control = ControlPosition(offset=number, hash=world.registry.hash)
    b.builder.control = ControlPosition(offset=number, hash=b"\x01" * 32)
    a.store(CHAIN[:4])
    b.store(CHAIN[:6])
    world.round(a, b)
    found = world.get(CHAIN)
    assert (lengths(found), reasons(found)) == ({"a": 4}, {"b": "quarantined"})
    b.builder.control = ControlPosition(offset=number, hash=world.registry.hash)
    b.store(CHAIN[6:7], CHAIN[5])
    world.round(a, b)
    assert reasons(world.get(CHAIN)) == {"b": "quarantined"}


def test_control_read_later_than_the_stream_is_compared_then() -> None:
    world = World()
    hook = world.join()
    ahead = world.registry.next_offset
    hook.builder.control = ControlPosition(offset=ahead, hash=b"\x01" * 32)
    hook.store(CHAIN[:4])
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 4}
    world.order(DomainCreated(domain="other", tenant="other"))
    assert world.refused(CHAIN).lagging is not None
    assert reasons(world.get(CHAIN, min_coverage=0)) == {"w0": "quarantined"}


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


def test_a_worker_that_is_drained_to_be_emptied_is_left_out_until_its_pulse_says_no_more() -> None:
    world = World()
    drained, other = world.join("w0"), world.join("w1")
    for hook in (drained, other):
        hook.store(CHAIN[:4])
    world.round(drained, other)
    drained.pulse(alarm=Alarm.DRAINING)
    found = world.get(CHAIN)
    assert (lengths(found), reasons(found)) == ({"w1": 4}, {"w0": "draining"})
    world.round(drained, other)
    assert lengths(world.get(CHAIN)) == {"w0": 4, "w1": 4}
