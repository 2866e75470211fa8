"""Where a setting comes from, and what is said when it can't be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from kvledger.command.status import masked
from kvledger.settings import ConfigurationError, Settings, configured_settings, load_settings
from kvledger.stack.plan import process_environment
from kvledger.stack.process import ProcessId, identify
from kvledger.stack.state import Endpoints, Home, Phase, StackState


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_caller_comes_before_the_environment_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kvledger.toml").write_text("kafka_port = 1\npostgres_port = 1\nlookup_port = 1\n")
    monkeypatch.setenv("KVLEDGER_POSTGRES_PORT", "2")
    monkeypatch.setenv("KVLEDGER_LOOKUP_PORT", "2")
    settings = load_settings(lookup_port=3)
    assert (settings.kafka_port, settings.postgres_port, settings.lookup_port) == (1, 2, 3)


def test_the_home_is_absolute(tmp_path: Path) -> None:
    assert load_settings().home == tmp_path / ".kvledger"


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLEDGER_KAFKA", "")
    assert load_settings().kafka is None


def test_a_named_file_that_is_absent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLEDGER_CONFIG", "absent.toml")
    with pytest.raises(ConfigurationError, match=r"absent\.toml, which is no file"):
        load_settings()


def test_a_bad_value_in_the_file_is_named_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "kvledger.toml").write_text("kafka_port = -1\n")
    with pytest.raises(ConfigurationError, match=r"kvledger\.toml: kafka_port"):
        load_settings()


def test_a_secret_is_never_shown() -> None:
    settings = Settings(database_url=SecretStr("postgresql://me:hunter2@there/db"))
    assert "hunter2" not in repr(settings) + str(settings.model_dump(mode="json"))
    assert masked("postgresql://me:hunter2@there:5432/db") == "postgresql://me:***@there:5432/db"
    assert masked("postgresql://there/db") == "postgresql://there/db"


def test_a_process_is_told_the_settings_and_addresses_in_force(tmp_path: Path) -> None:
    at = Endpoints(home=tmp_path, kafka="k:1", database_url="postgresql://p", lookup_url="", lookup_port=7)
    told = process_environment(Settings(kafka_heap_mb=300, kafka="other:1"), at)
    assert told["KVLEDGER_KAFKA"] == "k:1"
    assert told["KVLEDGER_DATABASE_URL"] == "postgresql://p"
    assert told["KVLEDGER_LOOKUP_PORT"] == "7"
    assert told["KVLEDGER_KAFKA_HEAP_MB"] == "300"
    assert told["KVLEDGER_HOME"] == str(tmp_path)


def test_a_running_stacks_addresses_are_used_where_none_are_set(tmp_path: Path) -> None:
    own = identify(os.getpid())
    assert own is not None
    at = Endpoints(home=tmp_path, kafka="k:1", database_url="postgresql://p:w@h/d", lookup_port=7)
    Home(tmp_path).write_state(StackState(phase=Phase.READY, supervisor=own, endpoints=at))
    settings = load_settings(home=tmp_path)
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == at.database_url
    assert (settings.kafka, settings.lookup_port) == ("k:1", 7)
    assert load_settings(home=tmp_path, kafka="mine:2").kafka == "mine:2"
    assert configured_settings(home=tmp_path).kafka is None


def test_a_stopped_stacks_addresses_are_not_used(tmp_path: Path) -> None:
    gone = ProcessId(pid=os.getpid(), started="0")
    at = Endpoints(home=tmp_path, kafka="k:1")
    Home(tmp_path).write_state(StackState(phase=Phase.READY, supervisor=gone, endpoints=at))
    assert load_settings(home=tmp_path).kafka is None
