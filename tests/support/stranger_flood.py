"""Floods an applier over a store in memory with streams of nobody; prints what it grew by as JSON.

`python -m tests.support.stranger_flood STREAMS`: half of them name a registration that control has passed, half
one that may come; each stores blocks.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from resource import getpagesize

from indexer.memory_store import MemoryStore
from tests.support.applier_world import ApplierWorld
from tests.support.log import ControlLog, StreamBuilder, block, declared, opened, stored

BATCH = 500
PASSED, TO_COME = 2, 10**9


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


def sealed(epoch_no: int) -> bytes:
    stranger = StreamBuilder("stranger-0000000", epoch_no=epoch_no)
    blocks = [block(epoch_no, each) for each in range(4)]
    return stranger.seal(opened(), events=[declared(), stored(blocks)]).value


async def flood(streams: int) -> dict[str, object]:
    control = ControlLog()
    mine = StreamBuilder(epoch_no=control.register())
    store = MemoryStore()
    world = ApplierWorld(store, control=control)
    applier, _ = await world.start()
    await world.send(applier, [mine.seal(opened(), events=[declared()]).value])
    templates = [sealed(PASSED), sealed(TO_COME)]
    grown: list[int] = []
    for first in range(0, streams, BATCH):
        values = [
            templates[number % 2].replace(b"stranger-0000000", b"stranger-%07d" % number)
            for number in range(first, first + BATCH)
        ]
        values.append(mine.seal(events=[stored([block("mine", first)])]).value)
        await world.send(applier, values)
        # The log and what left the process are not the applier's memory.
        del world.log.records[:-1]
        del world.outbox.buried[:-1]
        if first // BATCH % 10 == 9:
            grown.append(resident_bytes())
    held = await store.snapshot(world.log.records[-1].topic)
    whole = [state for _, state in held.states if state.key.worker == mine.worker]
    return {
        "grown": grown,
        "held": applier.strangers_held,
        "stored_streams": len(held.states),
        "foreign_records": applier.strangers.foreign_records,
        "let_go": applier.strangers.let_go,
        "dead": len(store.dead()),
        "own_copies": sum(state.copy_count() for state in whole),
        "own_status": [state.status for state in whole],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(flood(int(sys.argv[1])))))
