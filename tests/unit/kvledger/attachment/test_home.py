"""A home that can't be written to, or is full: said in one line, and what must be kept is tried again."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from events.model.profile import ContentProfile
from kvledger.attachment.bridge_settings import BridgeSettings, leave, read_all
from kvledger.attachment.life_identity import LifeIdentity
from kvledger.attachment.plan import Plan
from kvledger.attachment.report import EngineReport, ServedModel
from kvledger.engine_profile import EngineProfile
from kvledger.failure import CommandError, ExitCode
from kvledger.keyfile import write_private

PLAN = Plan("w0", EngineReport("http://e", (ServedModel(id="m"),)), (), EngineProfile(), {})


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A folder that can't be made, as a file has its name."""
    (tmp_path / "bridge").write_text("")
    return tmp_path / "bridge"


def test_who_couldnt_keep_what_is_void_doesnt_begin(blocked: Path) -> None:
    with pytest.raises(CommandError) as caught:
        LifeIdentity(blocked / "w0-0.identity.json").begin("life", PLAN)
    assert caught.value.exit_code is ExitCode.CONFIGURATION
    assert str(blocked) in caught.value.message


def test_what_becomes_void_while_nothing_can_be_kept_is_kept_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "bridge" / "w0-0.identity.json"
    identity = LifeIdentity(path)
    assert identity.begin("life", PLAN) == ()
    (tmp_path / "bridge").rename(tmp_path / "away")
    (tmp_path / "bridge").write_text("")
    identity.follow("life", PLAN, ["adapter"])
    identity.follow("life", PLAN)
    assert [one.levelno for one in caplog.records] == [logging.ERROR]
    (tmp_path / "bridge").unlink()
    identity.follow("life", PLAN)
    assert LifeIdentity(path).begin("life", PLAN) == ("adapter",)


def test_a_bridge_runs_where_its_settings_cant_be_left(
    blocked: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = BridgeSettings(
        worker="w0",
        rank=0,
        model="m",
        domain="default",
        endpoint="tcp://h:1",
        replay=None,
        topic="",
        url=None,
        hash_algorithm=None,
        content=ContentProfile(),
    )
    leave(blocked / "w0-0.settings.json", settings)
    assert "can't be written" in caplog.text
    assert read_all(blocked.parent) == []


def test_half_a_file_isnt_left_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_private(tmp_path / "file", "new")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_command_says_in_one_line_which_file_it_couldnt_write(blocked: Path) -> None:
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "kvledger",
            "witness",
            "key",
            "--name",
            "w.example/1",
            "--folder",
            str(blocked),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == ExitCode.CONFIGURATION, found.stderr
    assert found.stderr.startswith("kvledger: ")
    assert str(blocked) in found.stderr
    assert "Traceback" not in found.stderr
