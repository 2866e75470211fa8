"""Everything that a local stack runs, in one place: services, the steps between, kvledger's processes."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from kvledger.settings import ENV_PREFIX, Settings
from kvledger.stack import archive, http, kafka, port, postgres
from kvledger.stack.failure import PortsTakenError, PortTakenError
from kvledger.stack.state import Endpoints, Home


class Extent(StrEnum):
    """How much of the stack is wanted; each holds the one before."""

    SERVICES = "services"
    PREPARED = "prepared"
    ALL = "all"


async def always() -> bool:
    """The readiness of a process that can be asked nothing: that it runs."""
    return True


@dataclass(frozen=True)
class Service:
    """One supervised program: how to run it, when it is ready, how it is asked to stop."""

    name: str
    address: str
    command: tuple[str, ...]
    folder: Path
    log: Path
    environment: dict[str, str] = field(repr=False)
    ready: Callable[[], Awaitable[bool]] = always
    stop_signal: int = signal.SIGTERM
    run_as: str | None = None


@dataclass(frozen=True)
class Step:
    """One call between the services and the processes: `module:function` and its arguments.

    Every target is synchronous and idempotent; a step whose module is not installed is passed over.
    """

    name: str
    module: str
    function: str
    arguments: Callable[[Endpoints], tuple[object, ...]]


STEPS = (
    Step("keys", "kvledger.first_grants", "ensure_keys", lambda at: (at.home,)),
    Step("migrate", "kvledger.command.migrate", "run_migrations", lambda at: (at.database_url,)),
    Step("topics", "kvledger.command.topics", "ensure_topics", lambda at: (at.kafka,)),
    Step("grants", "kvledger.first_grants", "ensure_grants", lambda at: (at.home, at.kafka)),
)

# The order of starting; they stop in the reverse order.
PROCESSES = ("indexer", "serve", "controller")
AUDITOR = "auditor"
"""Runs beside them where the settings ask for it."""


def check_ports(settings: Settings, extent: Extent) -> None:
    """Looks at every port that a start will want, before anything runs, so that all taken ones are told at once.

    Raises `PortTakenError` for one, `PortsTakenError` for several.
    """
    wanted: list[tuple[int, str, str]] = []
    if settings.kafka is None:
        wanted.append((settings.kafka_port, "Kafka", "kafka_port"))
        wanted.append((settings.kafka_controller_port, "Kafka's controller", "kafka_controller_port"))
    if settings.database_url is None:
        wanted.append((settings.postgres_port, "PostgreSQL", "postgres_port"))
    if extent is Extent.ALL:
        wanted.append((settings.lookup_port, "the lookup service", "lookup_port"))
    taken: list[PortTakenError] = []
    for number, service, setting in wanted:
        try:
            if number != 0:
                port.choose(number, service=service, setting=setting)
        except PortTakenError as error:
            taken.append(error)
    if len(taken) == 1:
        raise taken[0]
    if taken:
        raise PortsTakenError(tuple(taken))


def make_kafka(settings: Settings, home: Home) -> kafka.Kafka:
    """The broker on free ports; raises `PortTakenError`."""
    chosen = port.choose(settings.kafka_port, service="Kafka", setting="kafka_port")
    return kafka.Kafka(
        folder=home.kafka,
        archives=archive.archive_folder(settings.cache_dir or archive.default_cache()),
        port=chosen,
        controller_port=port.choose(
            settings.kafka_controller_port,
            service="Kafka's controller",
            setting="kafka_controller_port",
            avoid=frozenset({chosen}),
        ),
        heap_mb=settings.kafka_heap_mb,
        java=kafka.java_program(settings.java),
    )


def make_postgres(settings: Settings, home: Home) -> postgres.Postgres:
    """The server on a free port; raises `PortTakenError`."""
    return postgres.Postgres(
        folder=home.postgres,
        port=port.choose(settings.postgres_port, service="PostgreSQL", setting="postgres_port"),
        fsync=settings.postgres_fsync,
        programs=postgres.programs(),
    )


def kafka_service(broker: kafka.Kafka, home: Home) -> Service:
    """The broker as a supervised program."""
    return Service(
        name="kafka",
        address=broker.bootstrap,
        command=broker.command(),
        folder=broker.folder,
        log=home.log("kafka"),
        environment=plain_environment(),
        ready=lambda: kafka.answers(broker.bootstrap),
    )


def postgres_service(server: postgres.Postgres, home: Home) -> Service:
    """The database server as a supervised program; SIGINT is its orderly stop."""
    return Service(
        name="postgres",
        address=f"{port.LOOPBACK}:{server.port}",
        command=server.command(),
        folder=server.folder,
        log=home.log("postgres"),
        environment=plain_environment(),
        ready=lambda: postgres.answers(server.url("postgres")),
        stop_signal=signal.SIGINT,
        run_as=server.run_as,
    )


def process_service(name: str, settings: Settings, at: Endpoints, home: Home) -> Service:
    """One of kvledger's own processes, told the addresses through its environment."""
    is_lookup = name == "serve"
    return Service(
        name=name,
        address=at.lookup_url if is_lookup else "",
        command=(sys.executable, "-m", "kvledger", name),
        folder=Path.cwd(),
        log=home.log(name),
        environment={**instance_environment(name, settings, home), **process_environment(settings, at)},
        ready=(lambda: http.answers(f"{at.lookup_url}/readyz")) if is_lookup else always,
    )


def auditor_service(settings: Settings, at: Endpoints, home: Home, chosen: int) -> Service:
    """The audit of the index that never ends; `chosen` is the port of its figures."""
    address = f"http://{port.LOOPBACK}:{chosen}"
    return Service(
        name=AUDITOR,
        address=address,
        command=(sys.executable, "-m", "kvledger", "audit", "index", "--follow", "--port", str(chosen)),
        folder=Path.cwd(),
        log=home.log(AUDITOR),
        environment=process_environment(settings, at),
        ready=lambda: http.answers(f"{address}/metrics"),
    )


def instance_environment(name: str, settings: Settings, home: Home) -> dict[str, str]:
    """The stack's own indexer is one and the same member of its group, however often it is started."""
    if name != "indexer" or settings.indexer_instance is not None:
        return {}
    place = f"{socket.gethostname()} {home.path.absolute()}".encode()
    return {f"{ENV_PREFIX}INDEXER_INSTANCE": f"stack-{hashlib.sha256(place).hexdigest()[:16]}"}


def plain_environment() -> dict[str, str]:
    """What a foreign program gets: nothing of the caller's that could change how it starts."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "TZ": "UTC"}


def process_environment(settings: Settings, at: Endpoints) -> dict[str, str]:
    """The caller's environment, with the settings and the addresses that are in force."""
    chosen = settings.model_dump(mode="json", exclude_none=True, exclude={"database_url"})
    in_force = {
        **chosen,
        "home": at.home,
        "kafka": at.kafka,
        "database_url": at.database_url,
        "lookup_port": at.lookup_port,
    }
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        **{ENV_PREFIX + name.upper(): str(value) for name, value in in_force.items()},
    }
