"""Faults of a fleet in virtual time. Each is told to the truth before it strikes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from events.ids import Role
from events.model.part import BlockEvicted
from kvledger.simulate.predecessor import exit_of
from kvledger.simulate.residency import ResidencyLog
from kvledger.simulate.truth import Truth
from tests.support.virtual_fleet import Member, UnconfirmedWorker, VirtualFleet

FaultOf = Callable[[VirtualFleet, Member], Coroutine[Any, Any, None]]


@asynccontextmanager
async def _trouble(fleet: VirtualFleet, worker: str | None, kind: str) -> AsyncIterator[None]:
    fleet.struck[kind] += 1
    fleet.truth.disturb(worker, kind=kind)
    try:
        yield
    finally:
        fleet.truth.calm(worker)


async def stall(fleet: VirtualFleet, member: Member) -> None:
    """One way of the log is slow for everybody."""
    del member
    log = fleet.log
    name, wire = fleet.rng.choice(
        [
            ("events", log.events),
            ("pulses", log.pulses),
            ("beacons", log.to_reader),
            ("signals", log.to_hooks),
        ]
    )
    seconds = fleet.rng.uniform(0.3, 1.2)
    async with _trouble(fleet, None, f"slow {name}"):
        wire.stall(seconds)
        await asyncio.sleep(seconds)


async def stall_control(fleet: VirtualFleet, member: Member) -> None:
    """The reader's fetch of kv.control hangs, while an engine restarts or is replaced."""
    seconds = fleet.rng.uniform(0.4, 1.5)
    async with _trouble(fleet, None, "slow control"):
        fleet.follower.stalled_until_s = fleet.loop.time() + seconds
        strike = fleet.rng.choice((restart, replace, nothing))
        await asyncio.gather(strike(fleet, member), asyncio.sleep(seconds))


async def nothing(fleet: VirtualFleet, member: Member) -> None:
    del fleet, member


async def lose(fleet: VirtualFleet, member: Member) -> None:
    """Records that the hook knows to be lost."""
    held_s = fleet.rng.uniform(0.1, 0.8)
    async with _trouble(fleet, member.name, "drop"):
        member.hook.drop_next(fleet.rng.randrange(1, 6), repair_after_s=held_s)
        await asyncio.sleep(held_s + 0.5)


async def lose_silently(fleet: VirtualFleet, member: Member) -> None:
    """Records that the hook believes to be in the log."""
    async with _trouble(fleet, member.name, "loss"):
        fleet.log.lose[member.name] = fleet.rng.randrange(1, 4)
        await asyncio.sleep(1.0)
        fleet.log.lose[member.name] = 0
        await asyncio.sleep(1.0)


async def repeat(fleet: VirtualFleet, member: Member) -> None:
    """Records come twice, which nobody may notice."""
    fleet.struck["twice"] += 1
    fleet.log.twice[member.name] = fleet.rng.randrange(1, 10)


async def restart(fleet: VirtualFleet, member: Member) -> None:
    """The engine dies and begins again, empty."""
    async with _trouble(fleet, member.name, "restart"):
        ended = member.worker.engine.life
        life = member.worker.crash()
        member.worker.dead = True
        member.worker._up.clear()
        await asyncio.sleep(fleet.rng.uniform(0.0, 0.4))
        member.worker.dead = False
        member.worker._up.set()
        member.hook.restarted(life, ended=True)
        await fleet.log.control.append(exit_of(member.name, ended, "test"), Role.SUPERVISOR)
        await member.hook.opened(10.0)


async def hold(fleet: VirtualFleet, member: Member) -> None:
    """A long step: nothing is told and nothing confirmed, and that is no trouble to be told of."""
    fleet.struck["long step"] += 1
    member.worker.submit(fleet.plan(fleet._next_ids()))
    member.worker.hold()
    await asyncio.sleep(fleet.rng.uniform(0.3, 2.0))
    member.worker.release()


async def reset(fleet: VirtualFleet, member: Member) -> None:
    """An idle engine is reset, and says so with its next step only."""
    async with _trouble(fleet, member.name, "reset"):
        fleet.paused.add(member.name)
        for _ in range(200):
            await asyncio.sleep(0.005)
            if not member.worker.busy and not member.worker._in_step and member.worker.engine.reset():
                break
        await asyncio.sleep(fleet.rng.uniform(0.0, 1.0))
        fleet.paused.discard(member.name)


async def cut_signals(fleet: VirtualFleet, member: Member) -> None:
    """kv.signals loses its end, while an engine is in a long step."""
    async with _trouble(fleet, None, "signals cut"):
        held = asyncio.ensure_future(hold(fleet, member))
        await asyncio.sleep(fleet.rng.uniform(0.2, 0.5))
        fleet.log.cut_signals(fleet.rng.randrange(2, 12))
        await held


async def replace(fleet: VirtualFleet, member: Member) -> None:
    """Another process takes the worker's name; the old one lives on for a while and doesn't know."""
    if member not in fleet.members:
        return
    async with _trouble(fleet, member.name, "replaced"):
        truth_log = member.worker.engine.log
        member.control.cut = True
        weak = isinstance(member.worker, UnconfirmedWorker)
        birth = f"z{fleet.now_ns()}-"
        new = fleet.add(member.name, log=ResidencyLog(fleet.now_ns), birth=birth, weak=weak)

        def taken() -> None:
            member.worker.engine.log = fleet.truth.split(member.name)
            member.worker._truth = Truth(fleet.now_ns)
            truth_log.begin_life(new.worker.engine.life)
            new.worker.engine.log = truth_log

        fleet.log.control.registered[member.name] = taken
        await new.hook.opened(10.0)
        fleet.members[fleet.members.index(member)] = new
        fleet.zombies.append(member)


async def omit(fleet: VirtualFleet, member: Member) -> None:
    """A hook's own fault: one eviction never gets into a record, and then the engine has nothing to do."""
    outlet = member.hook._outlet
    write, omitted = outlet.write, asyncio.Event()

    def omitting(stream_events: Any, parts: Any) -> bool:
        kept = {
            domain: [event for event in events if not isinstance(event, BlockEvicted)]
            for domain, events in parts.items()
        }
        if not omitted.is_set() and kept != {domain: list(events) for domain, events in parts.items()}:
            omitted.set()
            fleet.paused.add(member.name)
            return write(stream_events, kept)
        return write(stream_events, parts)

    outlet.write = omitting  # type: ignore[method-assign]
    async with _trouble(fleet, member.name, "omission"):
        with suppress(TimeoutError):
            async with asyncio.timeout(3.0):
                await omitted.wait()
        await asyncio.sleep(2.0)
        outlet.write = write  # type: ignore[method-assign]
        fleet.paused.discard(member.name)
        member.hook.repair.ask()
        await asyncio.sleep(1.0)


FAULTS: tuple[FaultOf, ...] = (
    stall,
    stall,
    stall_control,
    lose,
    lose_silently,
    repeat,
    restart,
    hold,
    hold,
    reset,
    reset,
    cut_signals,
    replace,
)


async def strike_on(fleet: VirtualFleet, faults: Sequence[FaultOf]) -> None:
    """One fault after the other, sometimes two at once, until cancelled."""
    await asyncio.sleep(1.0)
    running: list[asyncio.Task[None]] = []

    try:
        while True:
            fault = fleet.rng.choice(faults)
            running.append(fleet.loop.create_task(fault(fleet, fleet.rng.choice(fleet.members))))
            await asyncio.sleep(fleet.rng.uniform(0.2, 1.2))
    finally:
        for task in running:
            task.cancel()
        for result in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
