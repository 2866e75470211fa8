"""`kvledger witness` as a command: one key for its life, and refusals that say what to do."""

from __future__ import annotations

import http.client
import socket
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.checkpoint import KeyKind, Note, parse_key, parse_signatures
from auditor.witness import AddCheckpoint
from kvledger.cli import make_app
from kvledger.failure import CommandError, ExitCode
from kvledger.witnessing import FILE, load_witnesses
from tests.support.command import KVLEDGER, environment
from tests.support.witness import LOG_KEY, WITNESS_KEY, checkpoint


def run(*arguments: str) -> str:
    done = CliRunner().invoke(make_app("witness"), ["witness", *arguments])
    assert done.exception is None, done.exception
    return done.output.strip()


def refused(*arguments: str) -> CommandError:
    done = CliRunner().invoke(make_app("witness"), ["witness", *arguments])
    assert isinstance(done.exception, CommandError), done.output
    assert done.exception.advice
    return done.exception


def test_a_witness_has_one_name_and_one_key(tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path / "w"))
    assert "needs --name" in refused("key", *folder).message
    assert "needs --name" in refused("key", *folder, "--name", "a b").message
    made = run("key", *folder, "--name", "w.example/1")
    assert run("key", *folder) == run("key", *folder, "--name", "w.example/1") == made
    assert (parse_key(made).name, parse_key(made).kind) == ("w.example/1", KeyKind.COSIGNATURE)
    assert "is called w.example/1" in refused("key", *folder, "--name", "other").message
    path = tmp_path / "w" / "witness.json"
    assert path.stat().st_mode & 0o077 == 0
    path.write_text("{}")
    assert refused("key", *folder).exit_code == ExitCode.CONFIGURATION


def test_logs_it_cannot_watch_and_addresses_it_cannot_have_are_refused(tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path))
    run("key", *folder, "--name", "w")
    for text in ("garbage", str(WITNESS_KEY)):
        assert refused("serve", *folder, "--log", text).exit_code == ExitCode.USAGE
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        error = refused("serve", *folder, "--log", str(LOG_KEY), "--port", port)
    assert error.exit_code == ExitCode.UNAVAILABLE
    (tmp_path / "x.head").write_text("garbage")
    error = refused("serve", *folder, "--log", str(LOG_KEY), "--port", "0")
    assert error.exit_code == ExitCode.CONFIGURATION


def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path / "w"))
    key = parse_key(run("key", *folder, "--name", "w.example/1"))
    command = [*KVLEDGER, "witness", "serve", *folder, "--log", str(LOG_KEY), "--port", "0"]
    process = subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        host = process.stdout.readline().strip().rpartition("http://")[2]
        connection = http.client.HTTPConnection(host, timeout=20)
        note = checkpoint(3)
        for old in (0, 3):
            connection.request("POST", "/add-checkpoint", AddCheckpoint(old, (), note).to_bytes())
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == 200, text
            assert Note(note.text, parse_signatures(text)).signed_by(key)
        connection.close()
    finally:
        # As whoever is impatient does.
        process.terminate()
        process.terminate()
        assert process.wait(timeout=30) == 0
        process.stdout.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"quorum": 1}',
        '{"quorum": 0, "witnesses": [{"url": "http://w", "key": "garbage"}]}',
        f'{{"quorum": 0, "witnesses": [{{"url": "http://w", "key": "{LOG_KEY}"}}]}}',
        f'{{"quorum": 0, "witnesses": [{{"url": "ftp://w", "key": "{WITNESS_KEY}"}}]}}',
        f'{{"quorum": 2, "witnesses": [{{"url": "http://w", "key": "{WITNESS_KEY}"}}]}}',
    ],
)
def test_a_list_of_witnesses_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CommandError) as error:
        load_witnesses(tmp_path)
    assert error.value.exit_code == ExitCode.CONFIGURATION


def test_without_a_list_nobody_is_asked(tmp_path: Path) -> None:
    assert load_witnesses(tmp_path).addresses == ()
    (tmp_path / FILE).write_text(
        f'{{"quorum": 1, "witnesses": [{{"url": "http://w:1", "key": "{WITNESS_KEY}"}}]}}'
    )
    known = load_witnesses(tmp_path)
    assert (known.policy.quorum, known.addresses[0].key) == (1, WITNESS_KEY)
