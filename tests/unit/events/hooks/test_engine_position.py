"""A number alone names no message: bytes tell a repeat from a restart."""

from __future__ import annotations

from events.hooks.engine_position import EngineMessage, EnginePosition, Sighting


def message(seq: int, payload: bytes = b"p") -> EngineMessage:
    return EngineMessage("kv", seq, payload + bytes([seq % 256]))


def position_at(seq: int, remembered: int = 100) -> EnginePosition:
    position = EnginePosition(remembered)
    for number in range(seq + 1):
        position.take(message(number))
    return position


def test_fresh_position_expects_zero() -> None:
    position = EnginePosition()
    assert position.next_seq == 0
    assert position.sight(message(0)) is Sighting.NEXT
    assert position.sight(message(3)) is Sighting.AHEAD


def test_sighting_changes_nothing() -> None:
    position = position_at(5)
    for seq in (2, 6, 9):
        position.sight(message(seq))
    assert position.next_seq == 6


def test_repeat_is_known_and_other_bytes_are_a_restart() -> None:
    position = position_at(5)
    assert position.sight(message(5)) is Sighting.KNOWN
    assert position.sight(message(0)) is Sighting.KNOWN
    assert position.sight(message(5, b"other")) is Sighting.RESTARTED
    assert position.sight(message(0, b"other")) is Sighting.RESTARTED


def test_number_too_old_to_remember_may_be_a_restart_or_late() -> None:
    position = position_at(20, remembered=10)
    assert position.sight(message(11)) is Sighting.KNOWN
    assert position.sight(message(10)) is Sighting.UNREMEMBERED


def test_reset_forgets_the_life() -> None:
    position = position_at(5)
    position.reset()
    assert position.newest is None
    assert position.sight(message(0)) is Sighting.NEXT


def test_repr_holds_no_payload() -> None:
    assert "secret" not in repr(message(1, b"secret"))
