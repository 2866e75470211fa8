"""Where copies were: replay and history give the same, and a position that isn't there is an error that says so."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from events.fold.record import fold_record
from events.fold.state import StreamState
from events.ids import StreamKey
from events.token import Token
from indexer.time_travel import Wanted
from kvledger.command.at import Source, _at
from kvledger.failure import CommandError
from tests.integration.indexer.test_rebuild import rebuild, settings_of
from tests.support.indexer_log import IndexerLog, indexer_log

EVERYTHING = Wanted()


@pytest.fixture
async def log(kafka: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[IndexerLog]:
    async with indexer_log(kafka, topic_prefix, tmp_path / "home") as log:
        yield log


async def folded(log: IndexerLog, positions: dict[int, int]) -> Counter[tuple[str, str, str]]:
    """Blocks by (worker, epoch, holder) of the records before the positions."""
    states: dict[int, dict[StreamKey, StreamState]] = {number: {} for number in positions}
    for record in sorted(await log.read(), key=lambda record: record.offset):
        if record.offset < positions[record.partition]:
            fold_record(states[record.partition], record.value)
    return Counter(
        {
            (state.key.worker, state.key.epoch, holder): len(copies)
            for table in states.values()
            for state in table.values()
            for (holder, _), copies in state.copies.items()
            if copies
        }
    )


def counted(found: dict[str, Any]) -> Counter[tuple[str, str, str]]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for place in found["places"]:
        counts[place["worker"], place["epoch"], place["holder"]] += place["blocks"]
    return counts


async def test_time_and_token_name_the_same_past_by_replay_and_by_history(
    log: IndexerLog, database: str
) -> None:
    settings = settings_of(log, database)
    before_ms = 1_000
    logs = [await log.random(number, number) for number in (0, 1)]
    moments: list[tuple[int, dict[int, int]]] = []
    for _ in range(3):
        for one in logs:
            await log.send(one.partition, [record.value for record in one.records(120)])
        await asyncio.sleep(0.05)
        moments.append((time.time_ns() // 1_000_000, dict(log.counts)))
        await asyncio.sleep(0.05)
    await rebuild(log, database)
    for at_ms, positions in moments:
        found = await _at(settings, at_ms, None, EVERYTHING, Source.AUTO)
        assert (found["source"], found["whole"], found["events"]) == ("replay", True, positions)
        truth = await folded(log, positions)
        assert counted(found) == truth
        assert found["blocks"] == truth.total() > 0
        for given, token, source in (
            (at_ms, None, Source.HISTORY),
            (None, found["token"], Source.REPLAY),
            (None, found["token"], Source.HISTORY),
        ):
            same = await _at(settings, given, token, EVERYTHING, source)
            assert counted(same) == truth
    narrow = await _at(settings, moments[-1][0], None, Wanted(worker="w0-1"), Source.AUTO)
    assert {place["worker"] for place in narrow["places"]} == {"w0-1"}

    id_ = narrow["log"]
    for given, token, said in (
        (before_ms, None, "begins later"),
        (None, Token("another", (1, 1), 1).encode(), "of log another"),
        (None, Token(id_, (1, 10_000), 1).encode(), "beyond the log's end"),
        (None, Token(id_, (1, 1, 1), 1).encode(), "names 3 partitions"),
        (None, "kvt1.no", "not a token"),
    ):
        with pytest.raises(CommandError, match=said):
            await _at(settings, given, token, EVERYTHING, Source.AUTO)
    await log.send(0, [record.value for record in logs[0].records(20)])
    now_ms = time.time_ns() // 1_000_000 + 1_000
    with pytest.raises(CommandError, match="doesn't reach"):
        await _at(settings, now_ms, None, EVERYTHING, Source.HISTORY)
