"""A replica that starts over a long history: other streams are answered for meanwhile, and every answer says so."""

from __future__ import annotations

import random
from collections.abc import Iterator

from events.topic import EVENTS, pinned_partition, stream_record_key
from router_client.client import RouterClient
from router_client.failure import StaleError, UnavailableError
from router_client.wire import Answer
from tests.integration.lookup.test_lookup_service import CHAIN, TOKENS, serving, url
from tests.support.live_log import PARTITIONS, TinyHook, live_log, tiny_hook, until
from tests.support.log import stored
from tests.support.reader_world import lengths, reasons

RECORDS, IDS = 100, 2_000


def history() -> Iterator[list[bytes]]:
    """200,000 blocks of prompts that nobody asks for."""
    rng = random.Random(1)
    for _ in range(RECORDS):
        packed = rng.randbytes(16 * IDS)
        yield [packed[at : at + 16] for at in range(0, len(packed), 16)]


async def write(hook: TinyHook) -> None:
    """As fast as the broker takes it; the hook states no checksums, to leave the processor to the replica."""
    topic = hook.log.connection.topic(EVENTS)
    key = stream_record_key(hook.builder.worker, hook.builder.rank)
    async with hook.lock:
        sent = []
        for ids in history():
            record = hook.builder.seal(parts=[(hook.alias(), [stored(ids)])])
            sent.append(await hook.log.producer.send(topic, record.value, key=key, partition=hook.partition))
        for one in sent:
            await one


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
        long.copies.clear()
        await write(long)
        seen: list[Answer] = []
        async with (
            serving(kafka, topic_prefix, ready=False) as server,
            RouterClient(url(server), timeout_s=5) as client,
        ):

            async def whole() -> bool:
                try:
                    found = await client.lookup(
                        profile="tiny", token_ids=TOKENS, domain="default", max_staleness=2.0
                    )
                except (StaleError, UnavailableError):
                    return False
                seen.append(found)
                return found.complete

            await until(whole, timeout_s=60)
            copies = server.service.view.copies
    *early, last = seen
    assert (lengths(last), copies) == ({"long": 9, ready: 4}, RECORDS * IDS + 13)
    assert early, "the long stream was read before anybody else was answered for"
    for found in early:
        assert (lengths(found), found.complete) == ({ready: 4}, False)
        assert set(reasons(found)) == {"long"}
        assert (found.coverage.included, found.coverage.eligible) == (1, 2)
