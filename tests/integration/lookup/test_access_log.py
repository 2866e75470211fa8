"""Who asks is told to kv.access in batches, beside the answers; what can't be told is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.codec import decode_access
from events.kafka.connection import KafkaConnection
from events.topic import ACCESS, TopicNames
from indexer.service import access
from indexer.service.access import MAX_BATCHES, MAX_ENTRIES, AccessBook, AccessWriter
from tests.support.indexer_log import indexer_log


async def test_lookups_come_to_the_log_by_principal_and_domain(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    async with indexer_log(kafka, topic_prefix, tmp_path / "home") as log:
        book, clock = AccessBook(), iter(range(1_000, 2_000, 5))
        writer = AccessWriter(log.connection, book, "lookup-1", wall_ms=lambda: next(clock))
        for blocks in (3, 4):
            book.note("router-1", "acme-chat", blocks)
        book.note("dpo", "acme-chat", 0)
        book.lose(2)
        await writer.stop()
        [record] = await log.read(ACCESS)
    told = decode_access(record.value)
    assert [(one.principal, one.domain, one.lookups, one.matched_blocks) for one in told.entries] == [
        ("dpo", "acme-chat", 1, 0),
        ("router-1", "acme-chat", 2, 7),
    ]
    assert (told.replica, told.lost) == ("lookup-1", 2)
    assert told.from_ms < told.to_ms


async def test_without_a_broker_what_waits_is_bounded_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "SEND_TIMEOUT_S", 0.2)
    book = AccessBook()
    writer = AccessWriter(
        KafkaConnection("127.0.0.1:9", TopicNames("none.")), book, "lookup-1", wall_ms=lambda: 5
    )
    for _ in range(MAX_BATCHES + 3):
        book.note("router-1", "acme-chat", 1)
        writer._close_batch()
    await writer._send()
    assert writer.waiting == MAX_BATCHES
    assert book.lost_in_all == 3
    begins = [batch.from_ms for batch in writer._waiting]
    assert len(set(begins)) == MAX_BATCHES, "a clock that stands still doesn't make two batches one"
    await writer.stop(0.1)


def test_principals_beyond_the_bound_are_counted_as_lost() -> None:
    book = AccessBook()
    for number in range(MAX_ENTRIES + 7):
        book.note(f"router-{number}", "acme-chat", 1)
    entries, lost = book.take()
    assert (len(entries), lost) == (MAX_ENTRIES, 7)
    assert book.take() == ((), 0)
