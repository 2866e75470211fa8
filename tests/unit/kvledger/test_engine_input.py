"""Which adapter a bridge takes, and what it says when the profile and the address don't agree."""

from __future__ import annotations

import pytest

from kvledger.bridging import EngineAddress
from kvledger.engine_input import adapter_for
from kvledger.engine_profile import EngineFacts, EngineProfile
from kvledger.failure import CommandError, ExitCode
from kvledger.lmcache_input import is_input

TCP, TOPIC, DOOR = "tcp://127.0.0.1:5557", "kafka://127.0.0.1:9092/events", "http://127.0.0.1:9300"


def engine(name: str, endpoint: str) -> tuple[EngineAddress, EngineProfile]:
    address = EngineAddress(worker="w0", model="tiny", endpoint=endpoint)
    return address, EngineProfile(engine=EngineFacts(name=name))


@pytest.mark.parametrize(
    ("name", "endpoint"), [("vllm", TCP), ("SGLang", TCP), ("lmcache", TOPIC), ("lmcache", DOOR)]
)
def test_the_profile_names_the_engine(name: str, endpoint: str) -> None:
    assert adapter_for(*engine(name, endpoint)).engine == name.lower()


def test_a_page_size_that_nobody_told_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    adapter_for(*engine("sglang", TCP))
    assert "block_tokens" in caplog.text


@pytest.mark.parametrize(
    ("name", "endpoint", "said"),
    [
        ("trtllm", TCP, "lmcache, sglang, vllm"),
        ("lmcache", TCP, "lmcache doesn't speak at tcp://"),
        ("vllm", TOPIC, "vllm doesn't speak at kafka://"),
    ],
)
def test_another_engine_is_refused_with_what_can_be_read(name: str, endpoint: str, said: str) -> None:
    with pytest.raises(CommandError, match=said) as caught:
        adapter_for(*engine(name, endpoint))
    assert caught.value.exit_code is ExitCode.CONFIGURATION
    assert "[engine]" in (caught.value.advice or "")


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        (TOPIC, True),
        (DOOR, True),
        (f"{DOOR}/", True),
        ("kafka://broker:9092", False),
        ("http://127.0.0.1", False),
        ("http://127.0.0.1:9300/events", False),
        ("http://127.0.0.1:port", False),
        ("kafka://broker:9092/topic?x=1", False),
        (TCP, False),
        ("ipc:///tmp/events", False),
    ],
)
def test_an_address_of_lmcache_s_events_is_a_topic_or_a_door(endpoint: str, expected: bool) -> None:
    assert is_input(endpoint) is expected
