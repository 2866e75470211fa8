"""A process that floods a view with whatever anybody can write to the log; prints its memory as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from resource import getpagesize

from events.codec import dump
from events.ids import Basis, QuotaLevel, Role, Tier, Unit
from events.model.audit import QuotaState
from events.model.control import IdsScope, InvalidationRequested
from events.model.part import Ack, ProfileDeclared, RequestStanding
from events.model.signal import Echo, Pulse, PulseChecksum, RankPulse
from router_client.limit import ViewLimits
from tests.support.log import PROFILE, StreamBuilder, block, opened, stored
from tests.support.reader_world import Hook, World

LIMITS = ViewLimits(
    max_copies=4_000,
    max_strangers=32,
    max_former=20,
    max_profiles_seen=50,
    max_quotas=200,
    max_marks=500,
    max_checksums=16,
)
A_RECORD = 1_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


def pulse(world: World, hook: Hook, next_seq: int, echo: Echo | None) -> None:
    """Announces what may never come."""
    rank = RankPulse(
        rank=0, epoch=hook.builder.epoch, next_seq=next_seq, prev=hook.builder.prev, basis=Basis.PUBLISHED,
        echo=echo,
    )  # fmt: skip
    world.view.apply_pulse(dump(Pulse(worker=hook.builder.worker, ranks=(rank,))), world.now_ns)


def flood(world: World, turn: int) -> None:
    """Unique blocks, streams, profiles, orders, acks, pulses, beacons, quotas, and garbage on every topic."""
    view, name = world.view, f"t{turn}"
    for number in range(4):
        hook = world.join("w0", 0, f"{name}.{number}")
        for at in range(5):
            hook.store([block(name, number, at, each) for each in range(A_RECORD)])
        for each in range(60):
            hook.write(
                events=[
                    ProfileDeclared(
                        profile=each + 1,
                        content=PROFILE.model_copy(update={"revision": f"{name}.{number}.{each}"}),
                        block_bytes=(1,),
                    )
                ]
            )
        order = world.order(
            InvalidationRequested(
                scope=IdsScope(domain="default", ids=(block(name, number),)), requester="r", reason="operator"
            ),
            Role.CONTROL,
        )
        standings = tuple(RequestStanding(request=n, removed=0, old_left=0) for n in range(order))
        hook.write(events=[Ack(requests=standings)])
        for each in range(520):
            pulse(world, hook, 10**6 + each, None)
        pulse(world, hook, hook.builder.seq, Echo(offset=10**6, nonce=bytes(16)))
        checksum = PulseChecksum(holder="gpu", group=0, count=1, checksum=bytes(16))
        rank = RankPulse(
            rank=0, epoch=f"{name}.{number}", next_seq=10**6, prev=bytes(32), basis=Basis.PUBLISHED,
            checksums=(checksum,) * 500,
        )  # fmt: skip
        for _ in range(50):
            view.apply_pulse(dump(Pulse(worker="w0", ranks=(rank,))), world.now_ns)
    for number in range(150):
        stranger = StreamBuilder(f"stranger-{name}-{number}")
        world.deliver(
            stranger.seal(opened(), events=[stored([block(name, number, "s", n) for n in range(50)])]).value
        )
    for number in range(800):
        world.beacon(reader=f"reader-{number}")
    for number in range(1_000):
        view.apply_quota(
            dump(
                QuotaState(
                    tenant=f"{name}-{number}",
                    tier=Tier.GPU,
                    unit=Unit.BLOCKS,
                    level=QuotaLevel.WITHIN,
                    used=1,
                    term=1,
                )
            )
        )
    for number in range(300):
        garbage = number.to_bytes(4, "big") * 100
        world.deliver(garbage)
        view.apply_pulse(garbage, world.now_ns)
        view.apply_quota(garbage)
        view.apply_signal(10**9 + turn * 10**6 + number, garbage, world.now_ns)
    while not view.work(10_000):
        pass
    world.ask([block(name, 3, 4, n) for n in range(64)], consistency="any")


def main(turns: int) -> None:
    world = World(limits=LIMITS)
    before = resident_bytes()
    after: list[int] = []
    for turn in range(turns):
        flood(world, turn)
        after.append(resident_bytes())
    counters = world.view.counters
    print(
        json.dumps(
            {
                "before": before,
                "after": after,
                "held": {kind: list(pair) for kind, pair in world.view.held().items() if pair[1] < 1e300},
                "blocks": len(world.view.index),
                "forgotten": counters.forgotten,
                "shed": counters.shed,
                "strangers_forgotten": counters.forgotten_strangers,
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
