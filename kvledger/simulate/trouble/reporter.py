"""What happens to those who report: killed, doubled, or left behind in an old epoch."""

from __future__ import annotations

import asyncio

from kvledger.simulate.fault import Arena
from kvledger.simulate.trouble.probe import Probe, chatter

AWAY_S = (0.2, 1.5)
BOTH_S = (1.5, 3.0)
CUT_RING_STEPS = 20
REGISTERED_WITHIN_S = 20.0


async def hook_killed(arena: Arena, probe: Probe) -> str:
    """The bridge dies without a word and another attaches to the living engines.

    At times these can no longer tell their whole history.
    """
    fleet, name = arena.fleet, probe.worker.name
    cut = arena.rng.random() < 0.5
    usual = fleet.plan.ring_steps
    for rank in fleet.ranks(name):
        if cut and rank.publisher is not None:
            rank.publisher.resize(CUT_RING_STEPS)
    await fleet.kill_bridge(name)
    await chatter(probe, 10)
    await asyncio.sleep(arena.rng.uniform(*AWAY_S))
    process = await fleet.attach_bridge(name)
    for rank in fleet.ranks(name):
        if rank.publisher is not None:
            rank.publisher.resize(usual)
    return f"killed, another attached, history whole for {sum(process.histories)} of {len(process.histories)}"


async def split_brain(arena: Arena, probe: Probe) -> str:
    """A second bridge with the same identity: they supersede each other until one is stopped."""
    fleet, name = arena.fleet, probe.worker.name
    first = fleet.processes[name]
    folder = fleet.folder / f"second-{arena.rng.getrandbits(32):08x}"
    second = fleet.make_bridge(folder)
    await second.start(fleet.ranks(name))
    await chatter(probe, 10)
    await asyncio.sleep(arena.rng.uniform(*BOTH_S))
    stays, goes = (first, second) if arena.rng.random() < 0.5 else (second, first)
    fleet.processes[name] = stays
    if arena.rng.random() < 0.5:
        await goes.kill()
        stays.speak()
        how = "killed"
    else:
        # Its streams are closed: until the other has registered its own, nobody is owed an answer.
        for rank in fleet.ranks(name):
            fleet.truth.retire(name, rank.engine.rank)
        await goes.stop()
        stays.speak()
        for rank in fleet.ranks(name):
            await Probe(arena, rank, probe.basis).credited("split-brain", within_s=REGISTERED_WITHIN_S)
            fleet.truth.enlist(name, rank.engine.rank, basis=fleet.plan.basis)
        how = "stopped"
    return f"two bridges of one identity, the {'second' if goes is second else 'first'} {how}"


async def zombie_epoch(arena: Arena, probe: Probe) -> str:
    """A bridge that doesn't hear that it is superseded goes on in its old epoch beside its successor."""
    fleet, name = arena.fleet, probe.worker.name
    zombie = fleet.processes.pop(name)
    zombie.turn_deaf()
    await fleet.attach_bridge(name)
    await chatter(probe, 20)
    await asyncio.sleep(arena.rng.uniform(*BOTH_S))
    await zombie.kill()
    fleet.processes[name].speak()
    return "a superseded epoch went on"
