"""What a bridge remembers of its engine's life; and what the engine's server may answer to a reset."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.hooks.engine_http import EngineHttp
from events.hooks.life_file import KnownLife, LifeFile, digest
from events.hooks.registration import process_identity
from tests.support.fake_engine import FakeEngine


def test_what_is_stored_is_loaded_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "bridge" / "w0-0.json"
    known = KnownLife("life-1", 7, digest(b"payload"), confirmed_after=5, discharged=(3, 5))
    LifeFile(path).store(known)
    assert LifeFile(path).load() == known
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"payload" not in path.read_bytes()


WHOLE = '{"life": "x", "seq": %s, "digest": "%s", "confirmed_after": 1, "discharged": []}'


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"life": "x", "seq": "many"}', "\x00", WHOLE % (1, "no digest"), WHOLE % (-1, "00")],
)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "life.json"
    assert LifeFile(path).load() is None
    path.write_text(content)
    assert LifeFile(path).load() is None


def test_a_process_names_the_same_life_every_time() -> None:
    assert process_identity() == process_identity()


async def test_a_reset_says_what_was_in_its_way() -> None:
    async with FakeEngine(http_port=0) as engine:
        http = EngineHttp(engine.http_url, model="fake")
        assert (await http.reset(5.0)).refused is None
        assert await http.step(5.0)
        request = await engine.begin([1] * 32)
        busy = await http.reset(5.0)
        assert (busy.refused, "drain" in busy.cure) == ("blocks_in_use", True)
        engine.finish(request)
        engine.dev_mode = False
        closed = await http.reset(5.0)
        assert (closed.refused, "VLLM_SERVER_DEV_MODE" in closed.cure) == ("no_delete_path", True)
    gone = await http.reset(1.0)
    assert gone.refused == "engine_error"
    assert not await http.step(1.0)
