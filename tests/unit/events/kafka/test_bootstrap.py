"""Whoever gives a client up while it waits for its first metadata leaves no connection behind."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from auditor.log import PartitionReader, append_audit
from events.hooks.producer import RebuiltProducer
from events.kafka.connection import KafkaConnection, LogTail, LogUnavailableError
from events.kafka.topic_admin import TopicAdmin
from kvledger.stack.kafka import answers

API_VERSIONS = 18


class SlowBroker:
    """Says which requests it knows, and never answers one of them."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                kind, _, number = struct.unpack_from(">hhi", await reader.readexactly(size))
                if kind != API_VERSIONS:
                    self.asked.set()
                    continue
                known = b"".join(struct.pack(">hhh", one, 0, 2) for one in range(40))
                answer = struct.pack(">ihi", number, 0, 40) + known
                writer.write(struct.pack(">i", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            self.gone.set()


@pytest.fixture
async def broker() -> AsyncIterator[tuple[SlowBroker, KafkaConnection]]:
    made = SlowBroker()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    async with server:
        yield made, KafkaConnection(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")


def rebuilt(at: KafkaConnection) -> Coroutine[Any, Any, object]:
    return RebuiltProducer(at, client_id="test", max_batch_bytes=1_024).life()


STARTS: dict[str, Callable[[KafkaConnection], Coroutine[Any, Any, object]]] = {
    "tail": lambda at: LogTail(at, {("t", 0): 0}).start(),
    "producer": rebuilt,
    "admin": lambda at: TopicAdmin(at, partitions=1).check(),
    "auditor's reader": lambda at: PartitionReader(at, "t", 60.0).start(1),
    "auditor's producer": lambda at: append_audit(at, "k", [b"v"], 60.0),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
async def test_who_is_cancelled_before_the_first_metadata_leaves_no_connection(
    broker: tuple[SlowBroker, KafkaConnection],
    start: Callable[[KafkaConnection], Coroutine[Any, Any, object]],
) -> None:
    slow, at = broker
    async with asyncio.timeout(60):
        starting = asyncio.create_task(start(at))
        await slow.asked.wait()
        starting.cancel()
        await asyncio.wait({starting})
        assert starting.cancelled()
        await slow.gone.wait()


async def test_who_runs_out_of_time_leaves_none_either(broker: tuple[SlowBroker, KafkaConnection]) -> None:
    slow, at = broker
    async with asyncio.timeout(60):
        with pytest.raises(LogUnavailableError):
            await PartitionReader(at, "t", 0.5).start(1)
        await slow.gone.wait()
        slow.gone.clear()
        assert not await answers(at.bootstrap)
        await slow.gone.wait()
