"""Whether anything was lost: the fold of what a fleet wrote, against what its engines hold at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from events.codec import decode_batch
from events.errors import KvledgerError
from events.fold.apply import apply
from events.fold.state import StreamState
from events.identity import profile_digest, root_parent
from events.ids import CopyState, Inventory, StreamKey
from events.kafka.connection import LogTail
from events.topic import EVENTS
from kvledger.control import connection
from kvledger.settings import Settings
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.prompt import Prompt
from kvledger.simulate.worker import SimWorker

READ_TIMEOUT_S = 30.0


class LogEnd:
    """Where `kv.events` ended when a trial began; reads from there on when it is over."""

    def __init__(self, settings: Settings) -> None:
        at = connection(settings)
        self._at = at
        self._topic = at.topic(EVENTS)
        self._positions = {(self._topic, partition): 0 for partition in range(settings.partitions)}

    async def mark(self) -> None:
        """Everything that a fleet opened from now on writes lies behind this. Raises LogUnavailableError."""
        tail = LogTail(self._at, self._positions)
        await tail.start()
        try:
            self._positions = await tail.end_offsets()
        finally:
            await tail.stop()

    async def folded(self) -> dict[StreamKey, StreamState]:
        """Every stream that began behind the mark, up to the log's end now. Raises LogUnavailableError, and
        TimeoutError if the end isn't reached in time."""
        states: dict[StreamKey, StreamState] = {}
        tail = LogTail(self._at, self._positions)
        await tail.start()
        try:
            ends = await tail.end_offsets()
            left = {where for where, end in ends.items() if end > self._positions[where]}
            async with asyncio.timeout(READ_TIMEOUT_S):
                while left:
                    for record in await tail.fetch(timeout_ms=200, max_records=500):
                        _fold(states, record.value)
                        where = (record.topic, record.partition)
                        if record.offset + 1 >= ends[where]:
                            left.discard(where)
                    await asyncio.sleep(0)
        finally:
            await tail.stop()
        return states


class Names:
    """Block ids of engine keys, computed from tokens alone: nothing of the hooks' is used."""

    def __init__(self, fleet: Fleet, prompts: Iterable[Prompt]) -> None:
        self._ids: dict[int, bytes] = {}
        root = root_parent(profile_digest(fleet.plan.content()))
        for prompt in prompts:
            hasher = fleet.ring[prompt.tenant].hasher()
            ids = hasher.chain(root, prompt.token_bytes(), prompt.block_size)
            self._ids.update(zip(prompt.keys, ids, strict=True))
            parent = ids[-1] if ids else root
            for block in prompt.output_blocks():
                parent = hasher.block_id(parent, block.tokens)
                self._ids[block.key] = parent

    def pools(self, worker: SimWorker) -> dict[str, set[bytes]]:
        """What each tier of the worker's engine holds now. Raises KeyError for a block of an unknown prompt."""
        return {tier: {self._ids[key] for key in keys} for tier, keys in worker.engine.keys_by_tier().items()}


def lost_events(
    fleet: Fleet, states: dict[StreamKey, StreamState], names: Names
) -> tuple[list[str], dict[str, int]]:
    """(a line for each stream whose fold isn't what its engine holds, how many streams are what).

    A stream that claims to be whole must be equal to the pool. One with a partial inventory may lack blocks,
    but none that it is certain of may be missing in the pool.
    """
    lines: list[str] = []
    kinds: dict[str, int] = {}
    for worker in fleet.workers:
        if worker.dead:
            continue
        who = f"{worker.name}/{worker.engine.rank}"
        stream = worker.hook.stream if worker.hook is not None else None
        state = states.get(stream) if stream is not None else None
        if state is None:
            lines.append(f"{who}: no stream in the log")
            continue
        if not state.whole or state.fault:
            lines.append(f"{who}: {state.status.value} {state.fault}".rstrip())
            continue
        partial = any(holder.inventory is Inventory.PARTIAL for holder in state.holders.values())
        kinds["partial" if partial else "whole"] = kinds.get("partial" if partial else "whole", 0) + 1
        for tier, pool in names.pools(worker).items():
            certain, held = _of_tier(state, tier)
            claimed = certain - pool
            missing = set() if partial else pool - held
            if claimed or missing:
                lines.append(
                    f"{who} {tier}: {len(claimed)} blocks claimed that the engine lacks, "
                    f"{len(missing)} missing of {len(pool)}"
                )
    return lines, kinds


async def caught_up(fleet: Fleet, timeout_s: float = 10.0) -> list[str]:
    """Waits until every hook has been fed with all that its engine put on the wire; who wasn't in time."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while True:
        fleet.check()
        behind = [w for w in fleet.workers if not w.dead and not _fed(w)]
        if not behind or loop.time() > deadline_s:
            break
        await asyncio.sleep(0.05)
    return [f"{w.name}/{w.engine.rank}: its hook has not been fed the newest step" for w in behind]


def _fed(worker: SimWorker) -> bool:
    hook = worker.hook
    return hook is not None and hook.ready and hook.fed_seq == worker.engine.next_seq - 1


def _of_tier(state: StreamState, tier: str) -> tuple[set[bytes], set[bytes]]:
    certain: set[bytes] = set()
    held: set[bytes] = set()
    for (holder, _group), copies in state.copies.items():
        if state.holders[holder].tier.value == tier:
            held.update(copies)
            certain.update(block for block, copy in copies.items() if copy[1].state is CopyState.COMMITTED)
    return certain, held


def _fold(states: dict[StreamKey, StreamState], value: bytes) -> None:
    try:
        batch = decode_batch(value)
    except KvledgerError:
        return
    stream = batch.header.stream
    if stream not in states:
        if batch.header.seq:
            return
        states[stream] = StreamState(stream, batch.header.epoch_no)
    apply(states[stream], batch)
