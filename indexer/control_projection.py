"""Folds `kv.control`, `kv.audit` and `kv.quota` into tables, each batch with its offset in one transaction.

One process at a time is active (an advisory lock held by a connection); the others wait to follow it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from events.chain import sha256
from events.codec import decode_audit, decode_quota
from events.errors import DecodeError
from events.fold.registry import Registry
from events.ids import KeyId, Role, StreamKey
from events.kafka.connection import KafkaConnection, LogTail, LogUnavailableError, RawRecord
from events.kafka.control import ControlTail
from events.kafka.partition_log import KafkaPartitionLog
from events.keyring import KeyRing
from events.model.audit import AuditStatement, Checkpoint, VerdictGiven
from events.model.control import (
    ControlRecord,
    DeletionRequested,
    DomainAdmitted,
    DomainCreated,
    ExitAttested,
    Fenced,
    HolderDestroyed,
    HolderEnrolled,
    InvalidationRequested,
    LimitSet,
    Registered,
)
from events.signing import verify
from events.topic import AUDIT, CONTROL, QUOTA, Topic
from indexer import control_sql
from indexer.bulk import encode, insert
from indexer.control_position import still_there
from indexer.control_row import (
    checkpoint_row,
    deletion_row,
    domain_row,
    durable_rows,
    limit_row,
    quota_row,
    registration_row,
    verdict_row,
)
from indexer.database import UNAVAILABLE, connect
from indexer.row import Row
from indexer.store import LeaseLostError, StoreUnavailableError

log = logging.getLogger(__name__)
ADVISORY_LOCK = 0x6B766C63
RETRY_S = 1.0
RESOLVE_EVERY_S = 2.0
RESOLVE_ROWS = 5_000
MAINTAIN_EVERY_S = 3_600.0
LOOK_BACK_EVERY_S = 5.0
_STATEMENT: TypeAdapter[AuditStatement] = TypeAdapter(AuditStatement)


class ControlProjection:
    """`run` it in every indexer process."""

    def __init__(
        self,
        dsn: str,
        connection: KafkaConnection,
        *,
        keyring: KeyRing,
        monotonic_s: Callable[[], float],
        monotonic_ns: Callable[[], int],
        history_days: int = 90,
        interval_s: float = 0.2,
    ) -> None:
        self._dsn = dsn
        self._kafka = connection
        self._keyring = keyring
        self._monotonic_s, self._monotonic_ns = monotonic_s, monotonic_ns
        self._history_days = history_days
        self._interval_s = interval_s

    async def run(self) -> None:
        """Until cancelled; store or broker away: tries again."""
        while True:
            try:
                await self._lead()
            except (LogUnavailableError, StoreUnavailableError, LeaseLostError) as error:
                log.warning("control projection waits: %s", error)
            except UNAVAILABLE as error:
                log.warning("control projection waits: PostgreSQL: %s", type(error).__name__)
            await asyncio.sleep(RETRY_S)

    async def _lead(self) -> None:
        connection = await connect(self._dsn, name="kvledger control projection")
        try:
            while not await connection.fetchval(  # noqa: ASYNC110 - the lock is elsewhere
                "SELECT pg_try_advisory_lock($1)", ADVISORY_LOCK
            ):
                await asyncio.sleep(RETRY_S)
            active = _Active(self, connection)
            try:
                await active.run()
            finally:
                await active.stop()
        finally:
            connection.terminate()


class _Active:
    """One time of being active: folded from the log's first control record, written from the stored offset."""

    def __init__(self, owner: ControlProjection, connection: Any) -> None:
        self._owner = owner
        self._connection = connection
        self._kafka = owner._kafka
        self._registry = Registry(verify)
        self._control = ControlTail(self._kafka, self._registry, monotonic_ns=owner._monotonic_ns)
        self._control.listen(self._collect)
        self._seen: list[tuple[RawRecord, ControlRecord]] = []
        self._written_ms: dict[StreamKey, int] = {}
        self._looked_back = KafkaPartitionLog(self._kafka)
        self._hash_at_offset = b""
        self._terms: dict[str, int] = {}
        self._offsets: dict[str, int] = {}
        self._levels: dict[tuple[str, str, str], str] = {}
        self._resolved_at_s = self._maintained_at_s = self._looked_back_at_s = -1e9
        self._resolved_to = 0
        self._stores_told = False

    def _collect(self, raw: RawRecord, record: ControlRecord | None, why: str) -> None:
        if raw.offset + 1 == self._offsets[raw.topic]:
            self._hash_at_offset = self._registry.hash
        if record is not None and (not why or why == "conflicting_registration"):
            if isinstance(record.body, Registered) and not why:
                body = record.body
                self._written_ms[StreamKey(body.worker, body.rank, body.epoch)] = record.header.written_ms
            self._seen.append((raw, record))

    async def run(self) -> None:
        names = {topic: self._kafka.topic(topic) for topic in (CONTROL, AUDIT, QUOTA)}
        for name in names.values():
            self._terms[name], self._offsets[name] = await self._connection.fetchrow(control_sql.CLAIM, name)
        await self._drop_what_is_gone(names)
        for row in await self._connection.fetch("SELECT tenant, tier, unit, level FROM tenant_quota"):
            self._levels[row["tenant"], row["tier"], row["unit"]] = row["level"]
        tail = LogTail(self._kafka, {(names[t], 0): self._offsets[names[t]] for t in (AUDIT, QUOTA)})
        await tail.start()
        try:
            while True:
                others = await tail.fetch(timeout_ms=50, max_records=1_000)
                await self._control.catch_up()
                await self._write_control(names[CONTROL])
                for topic, write in ((AUDIT, self._audit_rows), (QUOTA, self._quota_rows)):
                    records = [record for record in others if record.topic == names[topic]]
                    if records:
                        await self._write(
                            topic, names[topic], records[-1].offset + 1, write(records), records
                        )
                await self._look_back(names)
                await self._resolve()
                await self._maintain()
                await asyncio.sleep(self._owner._interval_s)
        finally:
            await tail.stop()

    async def stop(self) -> None:
        """Idempotent."""
        await self._control.stop()
        await self._looked_back.close()

    async def _drop_what_is_gone(self, names: Mapping[Topic, str]) -> None:
        """Rows of another log, or of records that are gone from this one, are dropped and folded again. What
        the auditor said is believed by the keys of kv.control, so it goes with that."""
        await self._control.catch_up()
        control = names[CONTROL]
        stored = await self._connection.fetchrow(control_sql.STORED, control)
        log_id, running = stored["log_id"], bytes(stored["control_hash"])
        offset, at = self._offsets[control], self._registry.next_offset
        other = log_id not in ("", self._registry.log)
        cut = at < offset or (offset > 0 and running not in (b"", self._hash_at_offset))
        gone: dict[Topic, str] = {}
        if other or cut or not await still_there(self._connection, self._looked_back, names[AUDIT]):
            gone[AUDIT] = control_sql.OF_AUDIT
        if other or not await still_there(self._connection, self._looked_back, names[QUOTA]):
            gone[QUOTA] = control_sql.OF_QUOTA
        if other or cut:
            gone[CONTROL] = control_sql.OF_CONTROL
        if gone:
            told = ", ".join(topic.name for topic in gone)
            log.error(
                "rows of %s are folded again: the log is another one",
                told,
                extra={"action": "control_rebuilt"},
            )
        async with self._connection.transaction():
            for topic, sql in gone.items():
                name = names[topic]
                await self._connection.execute(sql)
                await self._connection.execute(control_sql.REWIND, name, self._terms[name])
                self._offsets[name] = 0
            if CONTROL not in gone and not running and offset > 0:
                # Written by a release that stored no hash: from now on it is compared.
                term, there = self._terms[control], self._hash_at_offset
                await self._connection.execute(control_sql.ADVANCE, control, term, offset, log_id, there, b"")

    async def _look_back(self, names: Mapping[Topic, str]) -> None:
        """Raises LogUnavailableError if what was written is gone from a topic meanwhile: begun anew, this drops it.
        Of kv.control its tail finds out."""
        now_s = self._owner._monotonic_s()
        if now_s - self._looked_back_at_s < LOOK_BACK_EVERY_S:
            return
        self._looked_back_at_s = now_s
        for name in (names[AUDIT], names[QUOTA]):
            if not await still_there(self._connection, self._looked_back, name):
                raise LogUnavailableError(f"{name} no longer holds what was read from it")

    async def _write_control(self, name: str) -> None:
        seen, self._seen = self._seen, []
        stored = self._offsets[name]
        if self._registry.next_offset == stored and self._stores_told:
            return
        rows: dict[str, dict[Any, Row]] = {
            sql: {} for sql in (control_sql.DOMAIN, control_sql.REGISTRATION, control_sql.DELETION)
        }
        limits: dict[Any, Row] = {}
        for raw, record in seen:
            if raw.offset >= stored:
                self._control_rows(raw, record, rows, limits)
        statements = [(sql, list(kept.values())) for sql, kept in rows.items()]
        statements.append((control_sql.LIMIT, list(limits.values())))
        # Once whatever is stored: a release before this one has passed them without a row.
        enrolled = any(isinstance(record.body, HolderEnrolled | HolderDestroyed) for _, record in seen)
        if enrolled or not self._stores_told:
            statements.append((control_sql.DURABLE, durable_rows(self._registry)))
            self._stores_told = True
        await self._write(CONTROL, name, self._registry.next_offset, statements)

    def _control_rows(
        self, raw: RawRecord, record: ControlRecord, rows: dict[str, dict[Any, Row]], limits: dict[Any, Row]
    ) -> None:
        registry, body = self._registry, record.body
        match body:
            case DomainCreated() | DomainAdmitted():
                rows[control_sql.DOMAIN][body.domain] = domain_row(registry.domains[body.domain])
            case Registered() | Fenced():
                for stream, registration in registry.registrations.items():
                    if (stream.worker, stream.rank) == (body.worker, body.rank):
                        rows[control_sql.REGISTRATION][stream] = registration_row(
                            registry, registration, self._written_ms.get(stream, 0)
                        )
            case ExitAttested():
                for stream, registration in registry.registrations.items():
                    if (stream.worker, registration.body.engine_life) == (body.worker, body.engine_life):
                        rows[control_sql.REGISTRATION][stream] = registration_row(
                            registry, registration, self._written_ms.get(stream, 0)
                        )
            case DeletionRequested() | InvalidationRequested():
                rows[control_sql.DELETION][raw.offset] = deletion_row(
                    registry, registry.deletions[raw.offset]
                )
            case LimitSet():
                limits[body.tenant, body.tier, body.unit] = limit_row(raw.offset, body)
            case _:
                return

    def _audit_rows(self, records: Sequence[RawRecord]) -> list[tuple[str, list[Row]]]:
        verdicts: list[Row] = []
        checkpoints: list[Row] = []
        for raw in records:
            try:
                record = decode_audit(raw.value)
                statement = _STATEMENT.validate_json(record.statement)
            except (DecodeError, ValidationError):
                log.warning("kv.audit %d can't be read", raw.offset, extra={"action": "audit_ignored"})
                continue
            grant = self._registry.grants.get(KeyId(record.signer))
            if (
                grant is None
                or grant.revoked_at is not None
                or Role.AUDITOR not in grant.roles
                or not verify(grant.public_key, record.signature, record.statement)
            ):
                log.warning("kv.audit %d isn't the auditor's", raw.offset, extra={"action": "audit_ignored"})
            elif isinstance(statement, VerdictGiven):
                verdicts.append(verdict_row(raw.offset, record.signer, statement))
            elif isinstance(statement, Checkpoint):
                checkpoints.append(checkpoint_row(raw.offset, record.signer, statement))
        return [(control_sql.VERDICT, verdicts), (control_sql.CHECKPOINT, checkpoints)]

    def _quota_rows(self, records: Sequence[RawRecord]) -> list[tuple[str, list[Row]]]:
        newest: dict[Any, Row] = {}
        history: list[Row] = []
        for raw in records:
            try:
                quota = decode_quota(raw.value)
            except DecodeError:
                log.warning("kv.quota %d can't be read", raw.offset, extra={"action": "quota_ignored"})
                continue
            row = quota_row(raw.offset, quota, raw.timestamp_ms)
            key = (quota.tenant, quota.tier, quota.unit)
            if self._levels.get(key) != quota.level:
                self._levels[key] = quota.level
                history.append({**row, "changed_at": row["since"]})
            if key not in newest or newest[key]["term"] <= quota.term:
                newest[key] = row
        return [(control_sql.QUOTA_HISTORY, history), (control_sql.QUOTA, list(newest.values()))]

    async def _write(
        self,
        topic: Topic,
        name: str,
        next_offset: int,
        statements: list[tuple[str, list[Row]]],
        records: Sequence[RawRecord] = (),
    ) -> None:
        running = self._registry.hash if topic is CONTROL else b""
        last = sha256(records[-1].value) if records else b""
        async with self._connection.transaction():
            moved = await self._connection.fetchval(
                control_sql.ADVANCE, name, self._terms[name], next_offset, self._registry.log, running, last
            )
            if moved is None:
                raise LeaseLostError(name, 0, self._terms[name])
            for sql, rows in statements:
                if rows:
                    await insert(self._connection, sql, rows)
            if topic is CONTROL:
                await self._connection.execute(control_sql.NAME_OWNERS)
        self._offsets[name] = next_offset

    async def _resolve(self) -> None:
        """Names the domains of aliases whose keys have come since; a bounded number at a time, round robin."""
        now_s = self._owner._monotonic_s()
        if now_s - self._resolved_at_s < RESOLVE_EVERY_S:
            return
        self._resolved_at_s = now_s
        rows = await self._connection.fetch(control_sql.UNRESOLVED, self._resolved_to, RESOLVE_ROWS)
        self._resolved_to = rows[-1]["stream_id"] + 1 if len(rows) == RESOLVE_ROWS else 0
        if not rows:
            return
        ring = self._owner._keyring
        found = [
            {"stream_id": row["stream_id"], "alias": bytes(row["alias"]), "domain": domain}
            for row in rows
            if (domain := ring.aliases(row["worker"], row["rank"], row["epoch_no"]).get(bytes(row["alias"])))
        ]
        if found:
            await self._connection.execute(control_sql.NAME_ALIAS, encode(found))

    async def _maintain(self) -> None:
        """History older than the audit window goes."""
        now_s = self._owner._monotonic_s()
        if now_s - self._maintained_at_s < MAINTAIN_EVERY_S:
            return
        self._maintained_at_s = now_s
        for sql in control_sql.FORGET:
            await self._connection.execute(sql, self._owner._history_days)
        await self._connection.execute(
            control_sql.PRUNE_DEAD, self._owner._history_days, control_sql.KEPT_DEAD_RECORDS
        )
