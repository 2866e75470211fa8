"""A log made ready for a simulated fleet, the fold of what it wrote, and what the fold must be."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from events.codec import decode_batch
from events.fold.apply import apply
from events.fold.change import Outcome
from events.fold.state import StreamState
from events.identity import profile_digest, root_parent
from events.ids import StreamKey
from events.kafka.connection import LogTail
from events.topic import EVENTS
from kvledger.command.topics import ensure_topics
from kvledger.control import connection
from kvledger.first_grants import ensure_grants, ensure_keys
from kvledger.settings import Settings, load_settings
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.prompt import Prompt
from kvledger.simulate.trace import TraceRequest
from kvledger.simulate.worker import SimWorker


def prepared_log(monkeypatch: pytest.MonkeyPatch, home: Path, kafka: str, prefix: str) -> Settings:
    """Keys in `home`, topics and grants under `prefix`: what `kvledger up` does, on the session's broker."""
    monkeypatch.setenv("KVLEDGER_TOPIC_PREFIX", prefix)
    monkeypatch.setenv("KVLEDGER_HOME", str(home))
    monkeypatch.setenv("KVLEDGER_KAFKA", kafka)
    ensure_keys(home)
    ensure_topics(kafka)
    ensure_grants(home, kafka)
    return load_settings()


async def folded(
    settings: Settings, outcomes: Counter[tuple[StreamKey, Outcome]] | None = None
) -> dict[StreamKey, StreamState]:
    """Every stream of `kv.events`, from the log's start to its end now; what came of its records is counted."""
    at = connection(settings)
    topic = at.topic(EVENTS)
    tail = LogTail(at, {(topic, partition): 0 for partition in range(settings.partitions)})
    await tail.start()
    states: dict[StreamKey, StreamState] = {}
    try:
        ends = await tail.end_offsets()
        left = {where for where, end in ends.items() if end}
        while left:
            for record in await tail.fetch(timeout_ms=200):
                found = _fold(states, record.value)
                if outcomes is not None:
                    outcomes[found] += 1
                where = (record.topic, record.partition)
                if record.offset + 1 >= ends[where]:
                    left.discard(where)
    finally:
        await tail.stop()
    return states


def _fold(states: dict[StreamKey, StreamState], value: bytes) -> tuple[StreamKey, Outcome]:
    batch = decode_batch(value)
    state = states.setdefault(batch.header.stream, StreamState(batch.header.stream, batch.header.epoch_no))
    return batch.header.stream, apply(state, batch).outcome


class Names:
    """Block ids of engine keys, computed from tokens alone: nothing of the hook's is used."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._root = root_parent(profile_digest(fleet.plan.content()))
        self.ids: dict[int, bytes] = {}

    def learn(self, request: TraceRequest) -> Prompt:
        """The request as a prompt, its whole blocks and those that its answer fills named."""
        prompt = self._fleet.prompt(request)
        hasher = self._fleet.ring[prompt.tenant].hasher()
        size = prompt.block_size
        ids = hasher.chain(self._root, prompt.token_bytes(), size)
        self.ids.update(zip(prompt.keys, ids, strict=True))
        parent = ids[-1] if ids else self._root
        for block in prompt.output_blocks():
            parent = hasher.block_id(parent, block.tokens)
            self.ids[block.key] = parent
        return prompt

    def pool(self, worker: SimWorker) -> set[bytes]:
        """Ids of what is in the worker's engine now."""
        return {self.ids[key] for key in worker.engine.cached_keys()}


def held(state: StreamState) -> set[bytes]:
    """Ids of all copies of a stream, certain or not."""
    return {block for copies in state.copies.values() for block in copies}
