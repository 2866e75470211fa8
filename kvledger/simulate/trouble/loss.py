"""Records that don't arrive: lost, late, twice, or never to be had again."""

from __future__ import annotations

import asyncio

from kvledger.simulate.fault import Arena
from kvledger.simulate.trouble.probe import Probe, chatter
from kvledger.simulate.trouble.worker_fault import must_be_left_out, reset_whole
from kvledger.simulate.wire.publisher import Publisher

BURST_STEPS = 300
SHORT_RING_STEPS = 10
TROUBLE_S = (1.0, 2.0)


def publisher_of(probe: Probe) -> Publisher:
    """The sockets that the fault is done to."""
    assert probe.worker.publisher is not None, "this fault needs engines with a publisher"
    return probe.worker.publisher


async def loss_with_replay(arena: Arena, probe: Probe) -> str:
    """A few steps miss the subscriber; replay has them."""
    lost = arena.rng.randint(1, 20)
    publisher_of(probe).faults.drop = lost
    await chatter(probe, lost + 5)
    return f"{lost} steps lost on the event socket"


async def loss_without_replay(arena: Arena, probe: Probe) -> str:
    """A few steps are lost where there is no replay socket: never whole again until the engine is reset."""
    lost = arena.rng.randint(1, 20)
    publisher_of(probe).faults.drop = lost
    await chatter(probe, lost + 5)
    default = await must_be_left_out("loss-without-replay", Probe(arena, probe.worker))
    asked = await must_be_left_out("loss-without-replay", probe, uncertain=True)
    await reset_whole("loss-without-replay", probe)
    return f"{lost} steps lost, left out as {default}, with basis unconfirmed {asked}, reset"


async def burst_loss(arena: Arena, probe: Probe) -> str:
    """Hundreds of steps miss the subscriber while replay doesn't answer; then it does."""
    publisher = publisher_of(probe)
    before = publisher.counts.dropped
    wanted = BURST_STEPS + arena.rng.randint(0, 50)
    with publisher.faults.during(mute=True, deaf=True):
        while publisher.counts.dropped - before < wanted:
            await chatter(probe, wanted - (publisher.counts.dropped - before) + 1)
    return f"{publisher.counts.dropped - before} steps lost in a row"


async def short_replay_ring(arena: Arena, probe: Probe) -> str:
    """More steps are lost than the ring holds: uncertain and visible until the engine is reset."""
    publisher = publisher_of(probe)
    usual = publisher.ring_steps
    publisher.resize(SHORT_RING_STEPS)
    lost = SHORT_RING_STEPS + arena.rng.randint(5, 40)
    try:
        with publisher.faults.during(mute=True, deaf=True):
            await chatter(probe, lost)
        await chatter(probe, 2)
        why = await must_be_left_out("short-replay-ring", probe, uncertain=True)
        await reset_whole("short-replay-ring", probe)
    finally:
        publisher.resize(usual)
    return f"{lost} steps lost, a ring of {SHORT_RING_STEPS}, left out as {why}, reset"


async def vanished(arena: Arena, probe: Probe) -> str:
    """The engine could not encode some steps: their numbers are burnt, on the event socket and in replay."""
    lost = arena.rng.randint(1, 5)
    publisher_of(probe).faults.vanish = lost
    await chatter(probe, lost + 3)
    why = await must_be_left_out("vanished-steps", probe, uncertain=True)
    await reset_whole("vanished-steps", probe)
    return f"{lost} steps could not be encoded, left out as {why}, reset"


async def dead_replay(arena: Arena, probe: Probe) -> str:
    """Replay accepts questions and never answers, at times while steps are lost too."""
    faults = publisher_of(probe).faults
    lost = arena.rng.choice((0, 0, 3))
    with faults.during(deaf=True):
        faults.drop = lost
        await chatter(probe, lost + 5)
        why = await must_be_left_out("dead-replay", probe)
        await asyncio.sleep(arena.rng.uniform(*TROUBLE_S))
    return f"replay was silent, {lost} steps lost, left out as {why}"


async def endless_replay(arena: Arena, probe: Probe) -> str:
    """Replay answers without its end mark."""
    faults = publisher_of(probe).faults
    with faults.during(endless=True):
        faults.drop = 3
        await chatter(probe, 8)
        await asyncio.sleep(arena.rng.uniform(*TROUBLE_S))
    return "replay answered without an end mark"


async def muted_publisher(arena: Arena, probe: Probe) -> str:
    """Nothing comes over the event socket; replay tells all, and then at times nothing either."""
    faults = publisher_of(probe).faults
    both = arena.rng.random() < 0.5
    why = ""
    with faults.during(mute=True):
        await chatter(probe, 20)
        await asyncio.sleep(arena.rng.uniform(*TROUBLE_S))
        if both:
            with faults.during(deaf=True):
                why = f", then replay too: {await must_be_left_out('muted-publisher', probe)}"
    return f"the event socket was mute{why}"


async def duplicates(arena: Arena, probe: Probe) -> str:
    """Every step comes twice, and old ones again between them."""
    with publisher_of(probe).faults.during(repeat=True):
        await chatter(probe, 30)
        await asyncio.sleep(arena.rng.uniform(*TROUBLE_S))
    return "steps were repeated"


async def delay(arena: Arena, probe: Probe) -> str:
    """The event socket is late."""
    delay_s = arena.rng.uniform(0.1, 0.8)
    with publisher_of(probe).faults.during(delay_s=delay_s):
        await chatter(probe, 30)
        await asyncio.sleep(arena.rng.uniform(*TROUBLE_S))
    return f"steps came {delay_s:.2f} s late"
