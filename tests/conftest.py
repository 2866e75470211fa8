"""Fixtures of the whole suite: one real stack for all tests, a database and topic names for each."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kvledger.stack.plan import Extent
from kvledger.stack.session import running_stack
from kvledger.stack.state import Endpoints
from tests.support.stack import drop_database, make_database, make_template, stack_settings, with_database

# A property holds or doesn't; how long an example takes is the machine's matter, and the same examples are tried
# each time. `--hypothesis-profile explore` tries others.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeat", settings.get_profile("explore"), derandomize=True)
settings.load_profile("repeat")


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> None:
    """A developer's own settings must not change what a test means; nor may a shell that runs it in the
    background with Ctrl-C ignored, which every process under test would inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in [name for name in os.environ if name.startswith("KVLEDGER_")]:
        del os.environ[name]


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """Kafka and PostgreSQL for the whole session, on free ports; a failure to start fails the tests."""
    home = tmp_path_factory.mktemp("stack") / "home"
    with running_stack(stack_settings(home), extent=Extent.SERVICES) as endpoints:
        yield endpoints


@pytest.fixture(scope="session")
def kafka(services: Endpoints) -> str:
    """host:port of the session's Kafka; make your topics under `topic_prefix`."""
    return services.kafka


@pytest.fixture(scope="session")
def postgres(services: Endpoints) -> str:
    """URL of the session's PostgreSQL, as its superuser; holds the migrated template."""
    admin_url = with_database(services.database_url, "postgres")
    make_template(admin_url)
    return admin_url


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """URL of a migrated database of the test's own, dropped after it."""
    url = make_database(postgres)
    yield url
    drop_database(postgres, url)


@pytest.fixture
def topic_prefix() -> str:
    """A prefix for topics and groups that no other test has."""
    return f"t{secrets.token_hex(5)}."


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder for local state, not made yet."""
    return tmp_path / "home"
