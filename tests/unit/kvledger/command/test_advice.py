"""A command that fails names the right command, the right option, and what is there instead."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from events.fold.registry import Registry
from events.ids import Role, Tier
from events.model.control import HolderDestroyed, HolderEnrolled
from events.receipt import make_receipt
from events.signing import Signer, verify
from kvledger.cli import extra_for, make_app
from kvledger.command.attest import check_store
from kvledger.command.retention import unkept
from kvledger.failure import CommandError, ExitCode
from tests.support.log import ControlLog

SIGNER = Signer.from_seed(bytes(32))


def refused(*arguments: str) -> CommandError:
    error = CliRunner().invoke(make_app(), list(arguments)).exception
    assert isinstance(error, CommandError), error
    return error


@pytest.mark.parametrize(
    ("arguments", "option", "command"),
    [
        (("key", "grant", "ff", "--role", "auditor"), "PUBLIC_KEY", "key grant"),
        (("receipt", "verify", "none", "--key", "ff"), "--key", "receipt verify"),
        (("audit", "verify", "none", "--key", "no-file"), "--key", "audit"),
        (("subject", "bind", "d", "s", "--ids-file", "no-file"), "no-file", "subject bind"),
        (("delete", "--domain", "d", "--ids-file", "no-file"), "no-file", "delete"),
        (("delete", "--tenant", "t", "--deadline-hours", "inf"), "--deadline-hours", "delete"),
        (("delete", "--domain", "d", "--subject", ""), "--subject", "delete"),
        (("delete", "--revision", "r", "--domain", "d"), "--revision", "delete"),
        (("delete", "--model", "m", "--domain", "d"), "--domain", "delete"),
        (("retention", "set", "--tenant", "t", "--retain-hours", "0.001"), "--retain-hours", "retention set"),
        (("retention", "set", "--tenant", "t", "--retain-hours", "inf"), "--retain-hours", "retention set"),
    ],
)
def test_wrong_usage_names_the_option_and_the_commands_own_help(
    arguments: tuple[str, ...], option: str, command: str
) -> None:
    error = refused(*arguments)
    assert (error.exit_code, error.advice) == (ExitCode.USAGE, f"kvledger {command} --help")
    assert option in error.message


def test_a_receipts_failure_says_what_is_wrong_with_what(tmp_path: Path) -> None:
    path, bundle = tmp_path / "receipt.json", tmp_path / "proof.jsonl"
    given = make_receipt(
        SIGNER, log="log", number=3, kind="deletion_requested", record_sha256=bytes(32), repeated=False
    )
    path.write_text(given.model_dump_json())
    bundle.write_text("{}")
    verifying = ("receipt", "verify", str(path), "--key")
    stranger = refused(*verifying, "00" * 32)
    assert "control.pub" in stranger.advice
    other = refused(*verifying, SIGNER.public_key.hex(), "--bundle", str(bundle))
    assert "audit run" in other.advice
    absent = refused(*verifying, SIGNER.public_key.hex(), "--bundle", str(tmp_path / "none"))
    assert absent.exit_code == ExitCode.USAGE
    path.write_text("{}")
    assert "Idempotency-Key" in refused(*verifying, SIGNER.public_key.hex()).advice


def test_only_a_store_that_somebody_enrolled_or_declared_is_attested_destroyed() -> None:
    log, registry = ControlLog(), Registry(verify)
    log.append(HolderEnrolled(durable_id="w0-disk", tier=Tier.DISK, owner="w0"), Role.ENROLMENT)
    log.append(HolderDestroyed(durable_id="old", evidence="shredded"), Role.SUPERVISOR)
    for offset, (value, signature) in enumerate(log.records):
        registry.fold(offset, value, signature)
    check_store(registry, "w0-disk", set())
    check_store(registry, "shared", {"shared"})
    with pytest.raises(CommandError, match="nobody has enrolled or declared a store w0-disc") as caught:
        check_store(registry, "w0-disc", {"shared"})
    assert "shared, w0-disk" in caught.value.advice
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_period_that_resets_can_not_keep_is_warned_of() -> None:
    assert unkept(None, 6) is None
    assert unkept(600, 6) is None
    assert "below 600 s" in (unkept(599, 6) or "")
    assert "1 time an hour" in (unkept(60, 1) or "")


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("aiokafka", ("audit", "archive", "--check"), "archive"),
        ("aiokafka", ("audit", "run"), "audit"),
        ("aiokafka", ("bridge",), "hook"),
        ("aiokafka", ("delete",), "router"),
        ("pyarrow", ("audit", "archive"), "archive"),
        ("nobody", ("audit",), None),
    ],
)
def test_a_missing_import_names_the_extra_that_the_command_is_documented_with(
    module: str, arguments: tuple[str, ...], extra: str | None
) -> None:
    assert extra_for(module, arguments) == extra


def test_sigterm_ends_a_simulated_fleet_as_ctrl_c_does() -> None:
    program = (
        "import asyncio, os, signal\n"
        "from kvledger.command.simulate import end_as_interrupted\n"
        "async def stay():\n"
        "    end_as_interrupted()\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        await asyncio.Event().wait()\n"
        "    finally:\n"
        "        print('closed')\n"
        "try:\n"
        "    asyncio.run(stay())\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["closed", "interrupted"]


def test_a_fake_engine_on_a_taken_port_says_so_in_a_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "tests.support.fake_engine", "--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "--port" in done.stderr
