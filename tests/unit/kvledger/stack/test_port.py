"""Loopback ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from kvledger.stack import port
from kvledger.stack.failure import PortTakenError


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((port.LOOPBACK, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_listening_port_is_not_free(taken: int) -> None:
    assert not port.is_free(taken)


def test_the_holder_of_a_port_is_found(taken: int) -> None:
    holder = port.holder(taken)
    assert holder is not None
    assert f"(process {os.getpid()})" in holder


def test_a_port_that_nobody_holds_has_no_holder() -> None:
    free = port.choose(0, service="s", setting="kafka_port")
    assert port.holder(free) is None


def test_a_taken_port_is_refused_with_everything_a_person_needs(taken: int) -> None:
    with pytest.raises(PortTakenError) as caught:
        port.choose(taken, service="Kafka", setting="kafka_port")
    assert (caught.value.port, caught.value.service, caught.value.setting) == (taken, "Kafka", "kafka_port")
    assert "KVLEDGER_KAFKA_PORT" in caught.value.advice


def test_zero_means_a_free_port_that_nobody_else_was_given() -> None:
    first = port.choose(0, service="s", setting="kafka_port")
    second = port.choose(0, service="s", setting="kafka_port", avoid=frozenset({first}))
    assert first != second
    assert port.is_free(first)
    assert port.is_free(second)
