"""A command's way to the control log: connect, read it whole, write under the home folder's keys."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from events.errors import GrantError
from events.fold.registry import Registry
from events.ids import Role
from events.kafka.connection import KafkaConnection, LogUnavailableError, RawRecord
from events.kafka.control import AskedFold, ControlTail, ControlWriter
from events.model.control import ControlBody, ControlRecord
from events.model.field import Name
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


@asynccontextmanager
async def control_tail(at: KafkaConnection) -> AsyncIterator[ControlTail]:
    """A tail that has read up to the log's end now. Raises LogUnavailableError."""
    tail = ControlTail(at, Registry(verify), monotonic_ns=time.monotonic_ns)
    try:
        await tail.catch_up()
        yield tail
    finally:
        await tail.stop()


async def read_registry(at: KafkaConnection) -> Registry:
    """The registry as of the log's end now. Raises LogUnavailableError."""
    async with control_tail(at) as tail:
        return tail.registry


def require_log(registry: AskedFold) -> str:
    """The log's id; raises CommandError if nobody has begun the log."""
    if not registry.log:
        raise CommandError(
            "the log has no genesis record", advice="run `kvledger up` once", exit_code=ExitCode.CONFIGURATION
        )
    return registry.log


@asynccontextmanager
async def control_writer(
    settings: Settings, registry: AskedFold, *roles: Role, exit_code: ExitCode = ExitCode.FAILED
) -> AsyncIterator[ControlWriter]:
    """A started writer that acts under the given roles' keys. Raises LogUnavailableError, KeyFileError, and
    CommandError where nobody has begun the log, or the key may not say what the writer was given: then nothing of
    that was written."""
    signers = load_signers(settings.home, *roles)
    writer = ControlWriter(connection(settings), registry, signers=signers, wall_ms=wall_ms)
    await writer.start()
    try:
        yield writer
    except GrantError as error:
        require_log(registry)
        raise CommandError(
            str(error),
            advice="kvledger key list shows what it is granted, and for which workers and stores",
            exit_code=exit_code,
        ) from error
    finally:
        await writer.stop()


@dataclass(frozen=True, slots=True)
class Written:
    """A control record that the log obeys; `repeated`: an earlier one stands under the same key."""

    number: int
    record_sha256: bytes
    log: str
    repeated: bool


async def write_once(
    settings: Settings,
    role: Role,
    body: ControlBody,
    *,
    principal: str,
    key: str | None = None,
    check: Callable[[Registry], None] = lambda _: None,
    same: Callable[[ControlBody], bool] | None = None,
) -> Written:
    """Appends a record and reads the log again: what is returned is what every fold obeys. Of records under one
    key of a principal the first one counts; if it isn't the `same`, by default equal, that is a CommandError.

    `check` looks at the registry before anything is written. Raises CommandError, LogUnavailableError.
    """
    if key is not None and not _is_name(key):
        raise CommandError(
            "an idempotency key is 1 to 200 letters, digits and . _ : @ / + -", exit_code=ExitCode.USAGE
        )
    found: dict[int, tuple[ControlRecord, str]] = {}

    def heard(record: RawRecord, decoded: ControlRecord | None, why: str) -> None:
        if decoded is not None and decoded.body.kind == body.kind:
            found[record.offset] = (decoded, why)

    tail = ControlTail(connection(settings), Registry(verify), monotonic_ns=time.monotonic_ns)
    tail.listen(heard)
    try:
        await tail.catch_up()
        log = require_log(tail.registry)
        number = None if key is None else tail.registry.idempotency.get((principal, key))
        mine: int | None = None
        if number is None:
            check(tail.registry)
            async with control_writer(settings, tail.registry, role) as writer:
                mine = (await writer.append(body, idempotency_key=key, key_scope=principal)).offset
            await tail.catch_up()
            number = mine if key is None else tail.registry.idempotency.get((principal, key), mine)
    finally:
        await tail.stop()
    record, why = found.get(number, (None, "another record"))
    is_same = record is not None and (record.body == body if same is None else same(record.body))
    if record is None or not is_same:
        raise CommandError(
            f"this idempotency key stands for something else (control record {number})",
            advice="use another --idempotency-key",
        )
    if why:
        raise CommandError(
            f"control record {number} is not obeyed: {why}", advice="is the key granted? kvledger key list"
        )
    return Written(number, record.record_sha256, log, repeated=number != mine)


def _is_name(text: str) -> bool:
    try:
        TypeAdapter(Name).validate_python(text)
    except ValidationError:
        return False
    return True


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
