"""Whether anything was lost at a soak's end: every stream's fold against its engine's pool, the index's digest."""

from __future__ import annotations

import asyncio

from events.errors import KvledgerError
from events.fold.digest import index_digest
from events.fold.registry import Registry
from events.fold.state import StreamState
from events.ids import CopyState, Inventory, StreamKey
from events.topic import EVENTS
from indexer.postgres_store import PostgresStore
from indexer.replay import fold_log
from kvledger.control import connection, read_registry
from kvledger.settings import Settings
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.nemesis.block_name import BlockNames
from kvledger.simulate.nemesis.whole import log_ends
from kvledger.simulate.worker import SimWorker

SETTLE_S = 60.0
PAUSE_S = 2.0


async def lost_events(settings: Settings, fleet: Fleet, names: BlockNames) -> list[str]:
    """A line for each living worker whose stream's fold isn't what its engine holds.

    What is on its way may take `SETTLE_S`. Call it when nothing is asked of the engines any more. Raises
    LogUnavailableError.
    """
    at = connection(settings)
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + SETTLE_S
    while True:
        registry = await read_registry(at)
        states, _ = await fold_log(at, await log_ends(settings))
        by_stream = {state.key: state for state in states}
        lines = [
            line
            for worker in fleet.workers
            if not worker.dead
            for line in _compare(worker, by_stream, registry, names)
        ]
        if not lines or loop.time() > ends_s:
            return lines
        await asyncio.sleep(PAUSE_S)


async def unequal_digest(settings: Settings) -> str:
    """Empty if the index equals the fold of the log at the index's own positions."""
    at = connection(settings)
    assert settings.database_url is not None
    store = PostgresStore(settings.database_url.get_secret_value(), name="kvledger soak")
    try:
        registry = await read_registry(at)
        stored, positions = await store.digest_at(registry, at.topic(EVENTS))
        states, _ = await fold_log(at, positions)
    except KvledgerError as error:
        return f"it could not be compared: {error}"
    finally:
        await store.close()
    folded = index_digest(states, registry)
    return "" if stored == folded else f"the index is {stored}, the log {folded}, at {positions}"


def _compare(
    worker: SimWorker, states: dict[StreamKey, StreamState], registry: Registry, names: BlockNames
) -> list[str]:
    who = f"{worker.name}/{worker.engine.rank}"
    newest = max(
        (
            known
            for stream, known in registry.registrations.items()
            if (stream.worker, stream.rank) == (worker.name, worker.engine.rank)
        ),
        key=lambda known: known.epoch_no,
        default=None,
    )
    if newest is None:
        return [f"{who} was never registered"]
    stream = StreamKey(newest.body.worker, newest.body.rank, newest.body.epoch)
    state = states.get(stream)
    if state is None:
        return [f"{who}: {stream} is not in the log"]
    if not state.whole or state.fault:
        return [f"{who}: {stream} is {state.status.value} {state.fault}".rstrip()]
    pool = names.names(worker.engine.cached_keys())
    held = {block for copies in state.copies.values() for block in copies}
    certain = {
        block
        for copies in state.copies.values()
        for block, copy in copies.items()
        if copy[1].state is CopyState.COMMITTED
    }
    # A partial inventory may lack what nobody saw; what is certain must be there all the same.
    partial = any(holder.inventory is Inventory.PARTIAL for holder in state.holders.values())
    missing = set() if partial else pool - held
    claimed = certain - pool
    if not missing and not claimed:
        return []
    return [
        f"{who}: {len(claimed)} blocks claimed that the engine lacks, {len(missing)} of {len(pool)} missing"
    ]
