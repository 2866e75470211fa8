"""Cutting the end off a log that a real broker wrote."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from events.kafka.connection import KafkaConnection, make_producer
from events.kafka.topic_admin import TopicAdmin
from events.topic import SIGNALS, TopicNames
from kvledger.simulate.nemesis.segment import SegmentError, batches, cut_tail
from kvledger.stack.state import Endpoints, Home


@pytest.fixture
async def written(services: Endpoints, topic_prefix: str, tmp_path: Path) -> tuple[Path, str]:
    """A copy of the broker's data folder with one partition: five batches of 1, 2, 3, 4 and 5 records."""
    at = KafkaConnection(services.kafka, TopicNames(topic_prefix))
    await TopicAdmin(at, partitions=1).ensure()
    topic = at.topic(SIGNALS)
    producer = make_producer(at, linger_ms=50)
    await producer.start()
    try:
        for size in range(1, 6):
            sent = [await producer.send(topic, b"%d/%d" % (size, n), partition=0) for n in range(size)]
            await asyncio.gather(*sent)
    finally:
        await producer.stop()
    data = Home(services.home).kafka / "data"
    partition = f"{topic}-0"
    copy = tmp_path / "data"
    shutil.copytree(data / partition, copy / partition)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (copy / name).write_text(f"0\n2\n{topic} 0 15\nother 0 15\n")
    return copy, partition


def places(folder: Path, partition: str) -> list[tuple[int, int]]:
    (segment,) = (folder / partition).glob("*.log")
    return [(place.first, place.after) for place in batches(segment.read_bytes())]


async def test_whole_batches_go_and_nothing_knows_them_any_more(written: tuple[Path, str]) -> None:
    folder, partition = written
    before = places(folder, partition)
    assert before[-1][1] == 15
    assert [after - first for first, after in before] == [1, 2, 3, 4, 5]
    (folder / partition / f"{15:020}.snapshot").write_bytes(b"knows 15")
    (folder / partition / f"{6:020}.snapshot").write_bytes(b"knows 6")
    cut = cut_tail(folder, partition, 2)
    assert cut is not None
    assert (cut.end, cut.records) == (6, 9)
    assert places(folder, partition) == before[:3]
    left = {path.suffix: path.stem for path in (folder / partition).iterdir() if path.stem.isdigit()}
    assert left == {".log": f"{0:020}", ".snapshot": f"{6:020}"}
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        topic = partition.removesuffix("-0")
        assert (folder / name).read_text() == f"0\n2\n{topic} 0 6\nother 0 15\n"


async def test_more_than_there_is_leaves_an_empty_segment(written: tuple[Path, str]) -> None:
    folder, partition = written
    cut = cut_tail(folder, partition, 99)
    assert cut is not None
    assert (cut.end, cut.records) == (0, 15)
    assert places(folder, partition) == []
    assert cut_tail(folder, partition, 1) is None


async def test_a_torn_end_is_no_batch(written: tuple[Path, str]) -> None:
    folder, partition = written
    (segment,) = (folder / partition).glob("*.log")
    data = segment.read_bytes()
    assert len(list(batches(data[:-1]))) == len(list(batches(data))) - 1
    assert list(batches(b"")) == list(batches(b"\0" * 40)) == []


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SegmentError, match="nothing-0"):
        cut_tail(tmp_path, "nothing-0", 1)
