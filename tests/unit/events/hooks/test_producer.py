"""A producer that is given up leaves no connection behind, whenever that happens."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import ProducerClosed

from events.hooks.producer import RebuiltProducer
from events.kafka.connection import KafkaConnection


async def test_who_is_cancelled_while_a_producer_starts_leaves_no_connection() -> None:
    came, gone = asyncio.Event(), asyncio.Event()

    async def mute_broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        while await reader.read(1_024):
            pass
        writer.close()
        gone.set()

    server = await asyncio.start_server(mute_broker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    producer = RebuiltProducer(KafkaConnection(f"127.0.0.1:{port}"), client_id="test", max_batch_bytes=1_024)
    async with server, asyncio.timeout(20):
        wanting = asyncio.create_task(producer.life())
        await came.wait()
        wanting.cancel()
        await asyncio.wait({wanting})
        assert wanting.cancelled()
        await gone.wait()
        await producer.close()
        with pytest.raises(ProducerClosed):
            await producer.life()
