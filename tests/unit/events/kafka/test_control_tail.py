"""A reader that is slow, or stood still, does not take a whole log for a broken one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from events.fold.registry import Registry
from events.kafka.connection import KafkaConnection, LogTruncatedError, RawRecord
from events.kafka.control import ControlTail
from events.signing import verify
from tests.support.log import ControlLog

HOLE_AFTER_S = 15.0


@dataclass
class SlowTail:
    """Gives one record at a fetch; before each, `stall` fetches of `stall_s` seconds give nothing."""

    records: list[RawRecord]
    end: int
    stall: int
    stall_s: float
    now_ns: int = 0
    at: int = 0
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.stall

    async def end_offsets(self) -> dict[tuple[str, int], int]:
        await asyncio.sleep(0)
        return {("kv.control", 0): self.end}

    async def fetch(self, *, timeout_ms: int, max_records: int) -> list[RawRecord]:
        await asyncio.sleep(0)
        if self.left and self.at < self.end:
            self.left -= 1
            self.now_ns += int(self.stall_s * 1e9)
            return []
        self.left = self.stall
        found = self.records[self.at : self.at + 1]
        self.at += 1
        return found


def reading(slow: SlowTail) -> ControlTail:
    tail = ControlTail(
        KafkaConnection("127.0.0.1:9"),
        Registry(verify),
        monotonic_ns=lambda: slow.now_ns,
        hole_after_s=HOLE_AFTER_S,
    )
    tail._tail, tail._looked_ns = slow, 0  # type: ignore[assignment]
    return tail


def written(count: int) -> list[RawRecord]:
    log = ControlLog()
    for number in range(count - len(log.records)):
        log.register(f"w{number}")
    return [
        RawRecord("kv.control", 0, offset, b"k", value, signature, 0)
        for offset, (value, signature) in enumerate(log.records)
    ]


@pytest.mark.parametrize(("stall", "stall_s"), [(3, 1.0), (1, 20.0), (0, 0.0)])
async def test_a_long_read_reaches_the_end(stall: int, stall_s: float) -> None:
    records = written(30)
    slow = SlowTail(records, len(records), stall, stall_s)
    tail = reading(slow)
    await tail.catch_up()
    assert tail.registry.next_offset == len(records)


async def test_a_record_that_never_comes_is_a_hole() -> None:
    records = written(12)
    slow = SlowTail(records[:10], len(records), 0, 0.0)
    tail = reading(slow)
    reached = slow.fetch

    async def fetch(*, timeout_ms: int, max_records: int) -> list[RawRecord]:
        slow.now_ns += timeout_ms * 1_000_000
        return await reached(timeout_ms=timeout_ms, max_records=max_records)

    slow.fetch = fetch  # type: ignore[method-assign]
    with pytest.raises(LogTruncatedError, match="no record at 10 and ends at 12"):
        await tail.catch_up()
    assert slow.now_ns >= HOLE_AFTER_S * 1e9
