"""What the command line refuses before it connects to anything, and whether it says what to do."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.live import UnknownRequestError
from events.hooks.hook import HookIdentity, ReservedWorkerError
from events.ids import CANARY_WORKER
from events.kafka.connection import LogUnavailableError
from kvledger.cli import make_app
from kvledger.command.domain import table
from kvledger.config import findings
from kvledger.control import or_unavailable
from kvledger.failure import CommandError, ExitCode
from kvledger.settings import ConfigurationError, Settings, load_settings
from kvledger.stack import plan, port
from kvledger.stack.failure import PortsTakenError, PortTakenError
from kvledger.stack.plan import Extent
from kvledger.stack.supervisor import server_of

BRIDGE = ("bridge", "--worker", "w0", "--model", "m")
SOCKET = ("--endpoint", "tcp://127.0.0.1:5557")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(*arguments: str) -> CommandError:
    done = CliRunner().invoke(make_app(), list(arguments))
    assert isinstance(done.exception, CommandError), done.output
    return done.exception


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*BRIDGE, "--endpoint", "foo"), "--endpoint 'foo' is no tcp://host:port"),
        ((*BRIDGE, "--endpoint", "tcp://*:5557"), "--endpoint"),
        ((*BRIDGE, "--endpoint", "tcp://127.0.0.1"), "--endpoint"),
        ((*BRIDGE, "--endpoint", "tcp://127.0.0.1:70000"), "--endpoint"),
        ((*BRIDGE, "--endpoint", "ipc://"), "--endpoint"),
        ((*BRIDGE, *SOCKET, "--replay", "5558"), "--replay '5558' is no tcp://host:port"),
        ((*BRIDGE, *SOCKET, "--engine-url", "127.0.0.1:8000"), "--engine-url must be an http://"),
        (("bridge", "--worker", CANARY_WORKER, "--model", "m", *SOCKET), "worker: this name is reserved"),
        (("limit", "set", "--tenant", "a"), "give --soft, --hard or both, or --none"),
        (("limit", "set", "--tenant", "a", "--none", "--soft", "1"), "--none alone"),
        (
            ("limit", "set", "--tenant", "a", "--soft", "1", "--tier", "tape"),
            "none of gpu, cpu, disk, remote",
        ),
        (("limit", "set", "--tenant", "a", "--soft", "1", "--unit", "tons"), "none of blocks, bytes"),
        (("audit", "verify", "proof", "--key", "nofile"), "there is no file nofile"),
        (("audit", "verify", "proof", "--key", "abcd"), "32 bytes"),
        (("migrate", "--database-url", "mysql://there"), "postgresql://"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_reached(arguments: tuple[str, ...], said: str) -> None:
    error = refused(*arguments)
    assert said in error.message
    assert error.exit_code == ExitCode.USAGE


def test_a_bad_bound_is_told_without_the_validators_name() -> None:
    error = refused("limit", "set", "--tenant", "a", "--soft", "9", "--hard", "1")
    assert error.message == "the soft limit lies above the hard one"


def test_no_hook_and_no_file_of_engines_takes_the_canarys_name(tmp_path: Path) -> None:
    (tmp_path / "engines.toml").write_text(
        f'[[engine]]\nworker = "{CANARY_WORKER}"\nmodel = "m"\nendpoint = "tcp://127.0.0.1:1"\n'
    )
    message = refused("bridge", "--config", "engines.toml").message
    assert all(part in message for part in ("engines.toml", "engine.0.worker", "reserved"))
    assert "Value error" not in message
    with pytest.raises(ReservedWorkerError):
        HookIdentity(CANARY_WORKER)


def test_an_address_in_a_file_of_engines_is_named_with_the_file_and_the_engine(tmp_path: Path) -> None:
    (tmp_path / "engines.toml").write_text('[[engine]]\nworker = "w7"\nmodel = "m"\nendpoint = "foo"\n')
    message = refused("bridge", "--config", "engines.toml").message
    assert all(part in message for part in ("engines.toml", "w7", "endpoint 'foo'"))


def test_a_database_that_is_away_is_named_with_what_to_do() -> None:
    error = refused("migrate", "--database-url", "postgresql://me:hunter2@127.0.0.1:1/none")
    assert error.exit_code == ExitCode.UNAVAILABLE
    assert "no PostgreSQL answers at 127.0.0.1:1" in error.message
    assert "KVLEDGER_DATABASE_URL" in error.advice
    assert not any(part in error.message for part in ("hunter2", "["))


@pytest.mark.parametrize(
    ("kafka", "advice"),
    [("", "`kvledger up`"), ("there:9092", "start the Kafka at there:9092, or correct KVLEDGER_KAFKA")],
)
def test_a_log_that_is_away_is_told_with_the_cure_that_fits(
    monkeypatch: pytest.MonkeyPatch, kafka: str, advice: str
) -> None:
    monkeypatch.setenv("KVLEDGER_KAFKA", kafka)

    async def work() -> None:
        raise LogUnavailableError("away")

    with pytest.raises(CommandError) as caught:
        asyncio.run(or_unavailable(work))
    assert advice in caught.value.advice


def test_an_unknown_setting_is_told_with_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kvledger.toml").write_text("kafka_prt = 1\n")
    monkeypatch.setenv("KVLEDGER_LOOKUP_PROT", "1")
    monkeypatch.setenv("KVLEDGER_XYZZY", "1")
    found = {finding.where: finding.what for finding in findings()}
    assert found["kvledger.toml: kafka_prt"] == "is no setting; did you mean kafka_port?"
    assert found["KVLEDGER_LOOKUP_PROT"] == "is no setting; did you mean KVLEDGER_LOOKUP_PORT?"
    assert found["KVLEDGER_XYZZY"] == "is no setting"


def test_a_bad_setting_is_told_without_the_validators_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLEDGER_KAFKA", "there")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert caught.value.message == "KVLEDGER_KAFKA: 'there' is not host:port"


def test_all_taken_ports_are_told_at_once() -> None:
    with socket.socket() as first, socket.socket() as second:
        for listener in (first, second):
            listener.bind((port.LOOPBACK, 0))
            listener.listen()
        one, two = first.getsockname()[1], second.getsockname()[1]
        some = Settings(kafka_port=one, kafka_controller_port=0, postgres_port=0, lookup_port=two)
        with pytest.raises(PortsTakenError) as caught:
            plan.check_ports(some, Extent.ALL)
        with pytest.raises(PortTakenError):
            plan.check_ports(some, Extent.SERVICES)
        plan.check_ports(some.model_copy(update={"kafka": "there:1"}), Extent.SERVICES)
    assert all(f"port {number}," in caught.value.message for number in (one, two))
    assert "KVLEDGER_KAFKA_PORT, KVLEDGER_LOOKUP_PORT" in caught.value.advice


def test_a_databases_server_is_named_without_credentials() -> None:
    assert server_of("postgresql://me:hunter2@there:5432/db") == "there:5432"


def test_an_unknown_request_is_told_with_the_newest_ten() -> None:
    assert "the newest are 12, 11, 10, 9, 8, 7, 6, 5, 4, 3" in str(UnknownRequestError(99, range(13)))
    assert "it has none" in str(UnknownRequestError(99, ()))


def test_domains_stand_in_columns_below_a_header() -> None:
    rows: list[dict[str, object]] = [
        {"domain": "acme/alice", "tenant": "acme", "keys": True},
        {"domain": "b", "tenant": "b", "keys": False},
    ]
    assert table(rows) == [
        "DOMAIN      TENANT  KEYS HERE",
        "acme/alice  acme    yes",
        "b           b       no",
    ]
