"""What a reader asks hooks for: a snapshot of what is not whole, a new epoch where no snapshot heals."""

from __future__ import annotations

from events.hooks.hook import STICKY_FAULTS
from events.ids import EvictReason, Role, StreamKey
from events.kafka.connection import KafkaConnection
from events.model.control import ExitAttested, Fenced
from events.model.part import BlockEvicted
from indexer.service.beacon import ASK_AGAIN_NS, BeaconWriter
from tests.support.reader_world import World, chain_of

CHAIN = chain_of(range(320))


def asked(world: World) -> dict[str, str]:
    return {key.worker: reason for key, reason in writer(world)._to_ask()}


def writer(world: World) -> BeaconWriter:
    return BeaconWriter(KafkaConnection("127.0.0.1:9"), world.view, monotonic_ns=lambda: world.now_ns)


def broken_fleet() -> World:
    world = World()
    whole, lost, broken, doubled = (world.join(name) for name in ("whole", "lost", "broken", "doubled"))
    for hook in (whole, lost, broken, doubled):
        hook.store(CHAIN[:2])
    lost.hold = True
    lost.store(CHAIN[2:3], CHAIN[1])
    lost.held.clear()
    lost.hold = False
    lost.store(CHAIN[3:4], CHAIN[2])
    world.deliver(broken.builder.seal(prev=b"\x01" * 32).value)
    gone = BlockEvicted(holder="gpu", group=0, ids=(CHAIN[0],), reason=EvictReason.CAPACITY)
    again = doubled.builder.seal(
        parts=[(doubled.alias(), [gone])],
        seq=doubled.builder.seq - 1,
        prev=doubled.builder.sent[-2].header_sha256,
    )
    world.deliver(again.value)
    return world


def test_a_fault_that_no_snapshot_heals_asks_for_a_new_epoch() -> None:
    found = asked(broken_fleet())
    assert set(found) == {"lost", "broken", "doubled"}
    assert not found["lost"].startswith(STICKY_FAULTS)
    assert found["broken"].split()[0] == "chain_break"
    assert found["doubled"].split()[0] == "equivocation"


def test_who_obeys_another_control_log_is_asked_for_a_new_epoch_unless_most_do() -> None:
    world = World()
    for name in ("one", "two", "three"):
        world.join(name).store(CHAIN[:2])
    views = {key.worker: stream for key, stream in world.view.streams.items()}
    views["one"].forked = True
    assert asked(world) == {"one": "forked here"}
    assert asked(world)["one"].startswith(STICKY_FAULTS)
    views["two"].forked = True
    assert asked(world) == {}


def test_the_ended_and_the_fenced_are_not_asked() -> None:
    world = broken_fleet()
    world.order(
        ExitAttested(worker="broken", engine_life="life-e1", attester="s", evidence="wait status"),
        Role.SUPERVISOR,
    )
    world.order(Fenced(worker="doubled", rank=0, epoch="e1", evidence="operator"))
    assert set(asked(world)) == {"lost"}


def test_a_stream_is_asked_again_only_after_a_while() -> None:
    world = broken_fleet()
    beacons = writer(world)
    assert len(beacons._to_ask()) == 3
    assert beacons._to_ask() == []
    world.now_ns += ASK_AGAIN_NS
    assert {key for key, _ in beacons._to_ask()} == {
        StreamKey(worker, 0, "e1") for worker in ("lost", "broken", "doubled")
    }
