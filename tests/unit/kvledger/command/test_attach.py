"""`kvledger attach --check` in a process of its own: what it prints, and how every failure ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from kvledger.failure import ExitCode
from tests.support.command import failure, kvledger
from tests.support.fake_engine import FakeEngine


async def attach(url: str, *more: str, home: Path) -> CompletedProcess[str]:
    return await asyncio.to_thread(kvledger, "attach", url, *more, home=home)


async def test_what_is_learned_is_printed_for_people_and_programs(tmp_path: Path) -> None:
    async with FakeEngine(http_port=0, dev_mode=False) as engine:
        engine.facts.adapters["ad1"] = "owner/hub"
        done = await attach(engine.http_url, "--check", "--json", home=tmp_path)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document["worker"] == engine.http_url.removeprefix("http://")
        assert document["ranks"][0]["endpoint"] == engine.endpoint
        assert document["identity"] == "unverified"
        assert set(document["missing"]) == {
            "revision",
            "tokenizer_revision",
            "attention",
            "position_encoding",
            "kv_dtype",
        }
        done = await attach(engine.http_url, "--check", "--set", "attention=fa3", home=tmp_path)
        assert "attention = fa3" in done.stdout
        assert "kv_dtype is not known" in done.stdout
        assert "adapter ad1: revision not known" in done.stdout


async def test_every_failure_is_a_line_with_what_to_do_and_a_code_of_its_own(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("wrong\n")
    async with FakeEngine(http_port=0, version="0.28") as older, FakeEngine(http_port=0) as silent:
        silent.facts.publishes = False
        for arguments, word, code in (
            (("http://127.0.0.1:1",), "does not answer", ExitCode.UNAVAILABLE),
            (("nonsense",), "must be an http://", ExitCode.USAGE),
            ((older.http_url,), "--events tcp://", ExitCode.USAGE),
            ((older.http_url, "--events", "5557"), "no tcp://host:port", ExitCode.USAGE),
            ((older.http_url, "--ranks", "2"), "go with --events", ExitCode.USAGE),
            ((silent.http_url,), "--kv-events-config", ExitCode.CONFIGURATION),
            (
                (silent.http_url, "--api-key-file", str(tmp_path / "none")),
                "can't be read",
                ExitCode.CONFIGURATION,
            ),
        ):
            done = await attach(*arguments, "--check", home=tmp_path)
            assert word in failure(done)
            assert done.returncode == code, arguments
        silent.facts.api_key = "right"
        done = await attach(silent.http_url, "--check", "--api-key-file", str(key), home=tmp_path)
        assert "--api-key-file" in failure(done)
        assert "wrong" not in done.stderr


@pytest.mark.parametrize("worker", ["two words", ""])
async def test_a_worker_with_a_name_that_is_none_is_refused_before_anything_starts(
    tmp_path: Path, worker: str
) -> None:
    async with FakeEngine(http_port=0) as engine:
        done = await attach(engine.http_url, "--worker", worker, "--check", home=tmp_path)
        assert "worker" in failure(done)
        assert done.returncode == ExitCode.USAGE
