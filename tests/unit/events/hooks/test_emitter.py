"""What a hook's emitter concludes from the offsets that the broker acknowledges."""

from __future__ import annotations

from events.hooks.emitter import Emitter, _Lane
from events.kafka.connection import KafkaConnection


async def test_an_offset_acknowledged_twice_means_that_the_log_was_cut() -> None:
    told: list[int] = []
    emitter = Emitter(KafkaConnection("127.0.0.1:9"), truncated=told.append)
    lane = _Lane(6)
    emitter._acknowledged(lane, 0, 3)
    emitter._acknowledged(lane, 3, 1)
    emitter._acknowledged(lane, 9, 2)
    emitter._acknowledged(lane, -1, 5)
    assert told == []
    emitter._acknowledged(lane, 10, 1)
    assert told == [6]
    emitter._acknowledged(lane, 11, 4)
    assert told == [6]
    emitter._acknowledged(lane, 2, 1)
    assert told == [6, 6]
    assert await emitter.close()
