"""The controller process on a real log: fences who is silent, asks for snapshots, hands over with a new term."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from events.codec import decode_signal, dump
from events.ids import Basis, StreamKey
from events.model.control import ExitAttested
from events.model.signal import Pulse, RankPulse, ResyncRequested
from events.topic import PULSE, SIGNALS
from tests.support.indexer_log import IndexerLog, indexer_log
from tests.support.log import StreamBuilder, block, declared, opened, stored


@pytest.fixture
async def log(kafka: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[IndexerLog]:
    async with indexer_log(kafka, topic_prefix, tmp_path / "home") as log:
        yield log


def pulse_of(builder: StreamBuilder) -> bytes:
    rank = RankPulse(
        rank=builder.rank,
        epoch=builder.epoch,
        next_seq=builder.seq,
        prev=builder.prev,
        basis=Basis.PUBLISHED,
    )
    return dump(Pulse(worker=builder.worker, ranks=(rank,)))


async def beat(log: IndexerLog, builders: list[StreamBuilder]) -> None:
    """Pulses of these workers, all in one partition, until cancelled."""
    while True:
        for builder in builders:
            await log.producer.send_and_wait(log.connection.topic(PULSE), pulse_of(builder), partition=0)
        await asyncio.sleep(0.1)


async def test_silent_stream_is_fenced_and_a_broken_one_is_asked(
    log: IndexerLog, database: str, tmp_path: Path
) -> None:
    builders = [await log.register(f"w{number}", life=f"life-{number}") for number in range(5)]
    await log.send(0, [builder.seal(opened(), events=[declared()]) for builder in builders])
    builders[1].burn()
    await log.send(0, [builders[1].seal(events=[stored([block(1)])])])
    await log.send(0, [builders[2].seal(prev=bytes(32))])
    indexer = log.start("indexer", database, tmp_path / "indexer.log")
    controller = log.start("controller", database, tmp_path / "controller.log", "--lost-after-s", "3")
    everybody = asyncio.create_task(beat(log, builders))
    silenced: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(90):
            await _until(lambda: _asked(log, "w1", "not whole"))
            await _until(lambda: _asked(log, "w2", "chain_break"))
            assert not (await log.registry()).fenced
            await log.control(
                ExitAttested(worker="w4", engine_life="life-4", attester="supervisor", evidence="exit code 0")
            )
            await _until(lambda: _fenced(log, "w4"))
            everybody.cancel()
            silenced = asyncio.create_task(beat(log, builders[1:]))
            await _until(lambda: _fenced(log, "w0"))
        assert (await log.registry()).fenced == {
            StreamKey("w4", 0, "e1"): "operator",
            StreamKey("w0", 0, "e1"): "timeout",
        }
        term = (await log.registry()).controller_term
        controller.send_signal(signal.SIGKILL)
        controller.wait(10)
        controller = log.start("controller", database, tmp_path / "controller.log")
        async with asyncio.timeout(60):
            await _until(lambda: _succeeded(log, term))
    finally:
        for task in (everybody, silenced):
            if task is not None:
                task.cancel()
        for process in (indexer, controller):
            process.kill()
            await asyncio.to_thread(process.wait, 10)


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    while not await holds():
        await asyncio.sleep(0.3)


async def _asked(log: IndexerLog, worker: str, reason: str) -> bool:
    signals = [decode_signal(record.value) for record in await log.read(SIGNALS)]
    return any(
        isinstance(wanted, ResyncRequested) and wanted.worker == worker and wanted.reason.startswith(reason)
        for wanted in signals
    )


async def _fenced(log: IndexerLog, worker: str) -> bool:
    return StreamKey(worker, 0, "e1") in (await log.registry()).fenced


async def _succeeded(log: IndexerLog, term: int) -> bool:
    return (await log.registry()).controller_term > term
