"""A replica that starts over a long history: other streams are answered for meanwhile, and every answer says so."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Iterator
from typing import Any

from events.codec import EncodedBatch
from events.topic import EVENTS, pinned_partition, stream_record_key
from router_client.client import RouterClient
from tests.support.live_log import PARTITIONS, TinyHook, live_log, tiny_hook, until
from tests.support.log import block, stored
from tests.support.lookup_service import CHAIN, answered, serving, url
from tests.support.reader_world import lengths, reasons

RECORDS, IDS = 100, 2_000


def history() -> Iterator[list[bytes]]:
    """200,000 blocks of prompts that nobody asks for."""
    rng = random.Random(1)
    for _ in range(RECORDS):
        packed = rng.randbytes(16 * IDS)
        yield [packed[at : at + 16] for at in range(0, len(packed), 16)]


async def write(hook: TinyHook) -> EncodedBatch:
    """All of it but the last record, which the hook has numbered and still holds: the history has no end yet.

    The hook states no checksums, to leave the processor to the replica."""
    hook.copies.clear()
    async with hook.lock:
        sent = []
        for ids in history():
            record = hook.builder.seal(parts=[(hook.alias(), [stored(ids)])])
            sent.append(await send(hook, record))
        for one in sent:
            await one
        return hook.builder.seal(parts=[(hook.alias(), [stored([block("last")])])])


async def send(hook: TinyHook, record: EncodedBatch) -> Awaitable[Any]:
    topic = hook.log.connection.topic(EVENTS)
    key = stream_record_key(hook.builder.worker, hook.builder.rank)
    future: Awaitable[Any] = await hook.log.producer.send(
        topic, record.value, key=key, partition=hook.partition
    )
    return future


async def test_a_long_history_delays_no_other_stream(kafka: str, topic_prefix: str) -> None:
    busy = pinned_partition("long", 0, PARTITIONS)
    ready = next(name for n in range(100) if pinned_partition(name := f"w{n}", 0, PARTITIONS) != busy)
    async with (
        live_log(kafka, topic_prefix) as log,
        tiny_hook(log, "long") as long,
        tiny_hook(log, ready) as other,
    ):
        await long.store(CHAIN[:9])
        await other.store(CHAIN[:4])
        last = await write(long)
        async with (
            serving(kafka, topic_prefix, ready=False) as server,
            RouterClient(url(server), timeout_s=20) as client,
        ):
            early = await answered(client, lambda found: True)
            assert (lengths(early), early.complete) == ({ready: 4}, False)
            assert set(reasons(early)) == {"long"}
            assert (early.coverage.included, early.coverage.eligible) == (1, 2)
            view = server.service.view
            await until(lambda: view.copies == RECORDS * IDS + 13, timeout_s=150)
            still = await answered(client, lambda found: True)
            assert (lengths(still), still.complete) == ({ready: 4}, False)
            await (await send(long, last))
            await answered(client, lambda found: found.complete and lengths(found) == {"long": 9, ready: 4})
