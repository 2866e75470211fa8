"""What waits for a broker: the newest word of every stream, however many there are."""

from __future__ import annotations

from typing import Literal

from events.hooks.signal_writer import SignalWriter
from events.kafka.connection import KafkaConnection
from events.model.signal import ResetTurn
from events.topic import TopicNames


def word(number: int, state: Literal["waits", "resets", "done"], nonce: int = 0) -> ResetTurn:
    return ResetTurn(worker=f"w{number}", rank=0, nonce=bytes([nonce]) * 16, ticket=None, state=state)


async def test_no_stream_of_a_large_process_is_forgotten_and_none_waits_twice() -> None:
    writer = SignalWriter(KafkaConnection("127.0.0.1:1", TopicNames("")))
    for number in range(200):
        writer.send(word(number, "waits"))
    for _ in range(3):
        writer.send(word(7, "resets"))
    writer.send(word(9, "done"))
    writer.send(word(9, "waits", nonce=1))
    waiting = list(writer._waiting.values())
    assert len(waiting) == 200
    assert waiting[-2:] == [word(7, "resets"), word(9, "waits", nonce=1)]
    await writer.close()
