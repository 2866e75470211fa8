"""A command's way to the control log: connect, read it whole, write under the home folder's keys."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from events.fold.registry import Registry
from events.ids import Role
from events.kafka.connection import KafkaConnection, LogUnavailableError, RawRecord
from events.kafka.control import ControlTail, ControlWriter
from events.model.control import ControlBody, ControlRecord
from events.model.field import Name
from events.signing import verify
from events.topic import TopicNames
from kvledger.failure import CommandError, ExitCode
from kvledger.keyfile import load_signer, load_signers
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


@dataclass(frozen=True, slots=True)
class Written:
    """A control record that the log obeys; `repeated`: an earlier one stands under the same key."""

    number: int
    record_sha256: bytes
    log: str
    repeated: bool


def require_grant(registry: Registry, settings: Settings, role: Role, body: ControlBody) -> None:
    """Raises CommandError if the key here may not say this: written, it would be ignored, and cost later proofs."""
    key = load_signer(settings.home, role).id
    why = registry.why_not(key, role, body)
    if why:
        raise CommandError(
            f"the {role.value} key {key} may not say this ({why}); nothing was written",
            advice="kvledger key list shows what it is granted, and for which workers and stores",
        )


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
            require_grant(tail.registry, settings, role, body)
            async with control_writer(settings, log, role) as writer:
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
