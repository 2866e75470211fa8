"""A command's way to the control log: connect, read it whole, write under the home folder's keys."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from events.fold.registry import Registry
from events.ids import Role
from events.kafka.connection import KafkaConnection, LogUnavailableError
from events.kafka.control import ControlTail, ControlWriter
from events.signing import verify
from events.topic import TopicNames
from kvledger.failure import CommandError, ExitCode
from kvledger.keyfile import load_signers
from kvledger.settings import Settings, config_path, configured_settings, where

T = TypeVar("T")


def wall_ms() -> int:
    """The one wall clock of the command line; information in records, never compared."""
    return time.time_ns() // 1_000_000


def connection(settings: Settings) -> KafkaConnection:
    """The Kafka that the settings name, or the local stack's."""
    bootstrap = settings.kafka or f"127.0.0.1:{settings.kafka_port}"
    return KafkaConnection(bootstrap, TopicNames(settings.topic_prefix))


async def read_registry(at: KafkaConnection) -> Registry:
    """The registry as of the log's end now. Raises LogUnavailableError."""
    tail = ControlTail(at, Registry(verify), monotonic_ns=time.monotonic_ns)
    try:
        await tail.catch_up()
    finally:
        await tail.stop()
    return tail.registry


def require_log(registry: Registry) -> str:
    """The log's id; raises CommandError if nobody has begun the log."""
    if not registry.log:
        raise CommandError(
            "the log has no genesis record", advice="run `kvledger up` once", exit_code=ExitCode.CONFIGURATION
        )
    return registry.log


@asynccontextmanager
async def control_writer(settings: Settings, log: str, *roles: Role) -> AsyncIterator[ControlWriter]:
    """A started writer that acts under the given roles' keys."""
    writer = ControlWriter(
        connection(settings), log=log, signers=load_signers(settings.home, *roles), wall_ms=wall_ms
    )
    await writer.start()
    try:
        yield writer
    finally:
        await writer.stop()


async def or_unavailable(work: Callable[[], Awaitable[T]]) -> T:
    """Runs `work`; a log that doesn't answer becomes a one-line failure with what to do."""
    try:
        return await work()
    except LogUnavailableError as error:
        given = configured_settings().kafka
        advice = (
            "start the stack with `kvledger up`, or set KVLEDGER_KAFKA"
            if given is None
            else f"start the Kafka at {given}, or correct {where('kafka', config_path())}"
        )
        raise CommandError(
            str(error),
            advice=advice,
            exit_code=ExitCode.UNAVAILABLE,
        ) from error
