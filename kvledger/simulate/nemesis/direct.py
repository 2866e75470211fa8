"""Workers with a hook in this process, added to a fleet whose others are attached by bridges."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace

from events.hooks.engine_stream import EngineStream
from events.hooks.hook import HookIdentity
from kvledger.simulate.fleet import OPEN_TIMEOUT_S, Fleet, FleetError
from kvledger.simulate.fleet_plan import MODEL, Attachment
from kvledger.simulate.nemesis.bridged import make_worker
from kvledger.simulate.predecessor import ENDPOINT_SCHEME

NAMES = "direct"


async def add_direct_workers(fleet: Fleet, count: int) -> None:
    """They are in the fleet's `workers`, open; the fleet ends them. Call it before anybody has asked anything.

    Raises FleetError if one isn't registered in time.
    """
    birth = f"{secrets.token_hex(4)}-"
    config = replace(fleet.plan, attachment=Attachment.DIRECT).engine_config()
    for index in range(count):
        name = f"{NAMES}-{index}"
        worker = make_worker(fleet, name, birth)
        identity = HookIdentity(name, 0, f"{ENDPOINT_SCHEME}{name}", MODEL)
        worker.hook = await fleet.host.add(
            identity, worker.engine.life, worker, EngineStream(name, 0, fleet.ring, config)
        )
        fleet.workers.append(worker)
        fleet.tasks.append(asyncio.create_task(worker.run()))
        if not await worker.hook.opened(OPEN_TIMEOUT_S):
            raise FleetError(f"{name} could not be registered")
        fleet.truth.enlist(name, 0, basis="engine")
