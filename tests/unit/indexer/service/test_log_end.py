"""Tokens ahead of the log cost one question to the broker for all of them, and a no comes from after the asking."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from events.kafka.connection import LogUnavailableError
from indexer.service.log_end import LogEnd


class Tail:
    """Answers where the log ends; counts how often it is asked, and how many ask at once."""

    def __init__(self, end: int) -> None:
        self.end, self.asked, self.at_once, self.away = end, 0, 0, False

    async def end_offsets(self) -> dict[tuple[str, int], int]:
        self.asked += 1
        self.at_once += 1
        assert self.at_once == 1
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.away:
            raise LogUnavailableError("away")
        return {("kv.events", 0): self.end, ("kv.control", 0): 10**9}


def log_end(tail: Any, every_s: float = 0.05) -> LogEnd:
    made = LogEnd("kv.events", monotonic_ns=time.monotonic_ns, every_s=every_s)
    made.follow(tail)
    return made


async def test_many_tokens_share_one_question() -> None:
    tail = Tail(10)
    end = log_end(tail)
    asked_ns = time.monotonic_ns()
    found = await asyncio.gather(*[end.beyond([11], asked_ns) for _ in range(1_000)])
    assert (set(found), tail.asked) == ({True}, 1)
    assert not await end.beyond([10], time.monotonic_ns())
    assert tail.asked == 1


async def test_questions_are_spaced() -> None:
    tail = Tail(10)
    end = log_end(tail)
    begun = time.monotonic()
    for _ in range(5):
        assert await end.beyond([11], time.monotonic_ns())
    assert tail.asked == 5
    assert time.monotonic() - begun >= 4 * 0.05


async def test_a_token_of_a_record_written_since_the_last_question_is_not_of_the_future() -> None:
    tail = Tail(10)
    end = log_end(tail)
    assert await end.beyond([11], time.monotonic_ns())
    tail.end = 11
    assert not await end.beyond([11], time.monotonic_ns())


async def test_what_the_broker_does_not_say_is_not_of_the_future() -> None:
    tail = Tail(10)
    tail.away = True
    end = log_end(tail)
    assert not await end.beyond([11], time.monotonic_ns())
    await end.stop()
    assert not await end.beyond([11], time.monotonic_ns())
    await end.stop()


async def test_it_stops_while_somebody_waits() -> None:
    class Hanging(Tail):
        async def end_offsets(self) -> dict[tuple[str, int], int]:
            await asyncio.Event().wait()
            return {}

    end = log_end(Hanging(1))
    waiting = asyncio.create_task(end.beyond([11], time.monotonic_ns()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await end.stop()
    assert not await waiting
