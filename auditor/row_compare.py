"""Rows of the index, as one transaction sees them, against what the log says they are at the same position.

Rows come through server-side cursors and are dropped as they are compared, so that the index is in memory once: as
the auditor's own fold.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from auditor import row_sql
from auditor.residency import Place
from auditor.row_control import AuditRows, ControlRows, QuotaRows, RowOf
from auditor.row_finding import Finding, FindingKind, Findings, LogPlace, differing, told
from auditor.row_partition import PartitionRows
from auditor.row_stream import RowStream
from auditor.row_table import RowCopy
from events.identity import profile_digest
from events.ids import StreamKey
from events.topic import AUDIT, CONTROL, EVENTS, QUOTA
from indexer.tables import (
    Base,
    Checkpoint,
    CopyAttribute,
    DeletionAck,
    DeletionRequest,
    Domain,
    DurableHolder,
    Holder,
    Profile,
    QuotaChange,
    QuotaLimit,
    Registration,
    StreamAlias,
    TenantQuota,
    TenantUsage,
    Verdict,
)

PREFETCH = 5_000
Names = Callable[[str, int, int], Mapping[bytes, str]]
"""(worker, rank, epoch_no) -> the domains of the aliases whose keys are known here."""

NOT_COMPARED: dict[str, dict[str, str]] = {
    "stream": {
        "id": "PostgreSQL's own number",
        "partition": "part of what the row is found by",
        "worker": "part of what the row is found by",
        "rank": "part of what the row is found by",
        "epoch": "part of what the row is found by",
        "fault": "words for people; the status is compared",
        "transfers": "work under way: its copies are compared, as pending",
        "snapshot": "work under way, until the status says how it ended",
        "updated_at": "PostgreSQL's own clock",
    },
    "holder": {"id": "PostgreSQL's own number", "stream_id": "the stream", "name": "the key"},
    "stream_alias": {"stream_id": "the stream", "alias": "the key"},
    "profile": {"stream_id": "the stream", "alias": "the key", "number": "the key"},
    "copy_attribute": {"id": "PostgreSQL's own number", "stream_id": "the stream"},
    "copy": {
        "holder_id": "the key",
        "group_index": "the key",
        "block": "the key",
        "attribute_id": "PostgreSQL's own number: the attributes are compared",
    },
    "tenant_usage": {"stream_id": "the stream", "alias": "the key", "tier": "the key"},
    "deletion_ack": {
        "stream_id": "the stream",
        "alias": "the key",
        "request": "the key",
        "updated_at": "PostgreSQL's own clock",
    },
    "domain": {"name": "the key"},
    "registration": {"epoch_no": "the key"},
    "deletion_request": {"number": "the key"},
    "durable_holder": {"durable_id": "the key"},
    "quota_limit": {"tenant": "the key", "tier": "the key", "unit": "the key"},
    "tenant_quota": {
        "tenant": "the key",
        "tier": "the key",
        "unit": "the key",
        "offset": "of the newest record, which compaction may have taken",
        "since": "the broker's clock when the level changed, which compaction may have taken",
    },
    "quota_change": {
        "offset": "the key",
        "changed_at": "the broker's clock",
    },
    "verdict": {"offset": "the key"},
    "checkpoint": {"offset": "the key"},
}
"""Columns that an audit doesn't compare, and why; a test holds the rest to be compared."""


@dataclass(slots=True)
class StreamRow:
    """A stream that both sides have: the index's number of it, and of its holders."""

    number: int
    rows: RowStream
    partition: int
    holders: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class RowComparison:
    """`connection` is inside a repeatable-read transaction. `ahead` is kv.control read further than any record
    that the partitions hold."""

    connection: Any
    ahead: ControlRows
    names: Names | None = None
    found: Findings = field(default_factory=Findings)

    async def _rows(self, sql: str, *arguments: Any) -> AsyncIterator[Any]:
        async for row in self.connection.cursor(sql, *arguments, prefetch=PREFETCH):
            yield row

    async def streams(self, partitions: Mapping[int, PartitionRows]) -> dict[StreamKey, StreamRow]:
        """Compares the streams of these partitions and what hangs on them but copies; returns those whose copies
        can be compared: that both sides have, the durable ones of superseded streams among them."""
        found: dict[StreamKey, StreamRow] = {}
        missing = {
            key for rows in partitions.values() for key in rows.streams if not self.ahead.superseded(key)
        }
        async for row in self._rows(row_sql.STREAMS, list(partitions)):
            key, partition = StreamKey(row["worker"], row["rank"], row["epoch"]), row["partition"]
            epoch = self.ahead.fold.epochs.get(key)
            if epoch is None or epoch.body.partition != partition or key in partitions[partition].strangers:
                continue
            folded = partitions[partition].streams.get(key)
            if folded is None:
                if partitions[partition].start > 0:
                    partitions[partition].headless[key] = None
                elif not self.ahead.superseded(key):
                    self._add(FindingKind.STREAM, str(key), told({"next_seq": row["next_seq"]}), None, None)
                continue
            missing.discard(key)
            found[key] = StreamRow(row["id"], folded, partition)
            if not self.ahead.superseded(key):
                self._differ(
                    FindingKind.STREAM, str(key), row, _stream(folded), self._event(partition, folded.offset)
                )
        for key in sorted(missing):
            partition = self.ahead.fold.epochs[key].body.partition
            rows = partitions[partition].streams[key]
            at = self._event(partition, rows.offset)
            self._add(FindingKind.STREAM, str(key), None, told({"next_seq": rows.next_seq}), at)
        live = [stream for key, stream in found.items() if not self.ahead.superseded(key)]
        await self._hanging(Holder, FindingKind.HOLDER, live, ("name",), _holders)
        await self._number_holders(found.values())
        await self._hanging(Profile, FindingKind.PROFILE, live, ("alias", "number"), _profiles)
        await self._hanging(DeletionAck, FindingKind.ACK, live, ("alias", "request"), _answers)
        await self._hanging(StreamAlias, FindingKind.ALIAS, live, ("alias",), self._aliases)
        return found

    async def _number_holders(self, streams: Iterable[StreamRow]) -> None:
        by_number = {stream.number: stream for stream in streams}
        async for row in self._rows(row_sql.of_streams(Holder), list(by_number)):
            by_number[row["stream_id"]].holders[row["id"]] = row["name"]

    async def _hanging(
        self,
        model: type[Base],
        kind: FindingKind,
        streams: Iterable[StreamRow],
        key: tuple[str, ...],
        expect: Callable[[RowStream], dict[tuple[Any, ...], RowOf]],
        *,
        extra: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        """Compares the rows of a table that hang on streams, one stream at a time. `extra`: whether a row that
        the log has nothing for is one too many."""
        waiting = {stream.number: stream for stream in streams}
        current: StreamRow | None = None
        expected: dict[tuple[Any, ...], RowOf] = {}

        def finish() -> None:
            if current is not None:
                for which, row in expected.items():
                    where = f"{current.rows.stream} {_key(which)}"
                    self._add(kind, where, None, told(row.values), self._event(current.partition, row.offset))

        async for row in self._rows(row_sql.of_streams(model), list(waiting)):
            if current is None or row["stream_id"] != current.number:
                finish()
                current = waiting.pop(row["stream_id"])
                expected = expect(current.rows)
            which = tuple(row[name] for name in key)
            where = f"{current.rows.stream} {_key(which)}"
            wanted = expected.pop(which, None)
            if wanted is not None:
                self._differ(kind, where, row, wanted.values, self._event(current.partition, wanted.offset))
            elif extra(row):
                at = self._event(current.partition, current.rows.offset)
                self._add(kind, where, _extra(row, key), None, at)
        finish()
        for stream in waiting.values():
            current, expected = stream, expect(stream.rows)
            finish()

    def _aliases(self, rows: RowStream) -> dict[tuple[Any, ...], RowOf]:
        """Every alias that the stream has spoken under; its domain where the keys are here. The index names it
        once it has the keys itself."""
        seen = {alias for alias, _ in rows.declarations} | {alias for alias, _ in rows.answers}
        known = {} if self.names is None else self.names(rows.stream.worker, rows.stream.rank, rows.epoch_no)
        found: dict[tuple[Any, ...], RowOf] = {}
        for alias in seen:
            domain = known.get(alias)
            values = {} if domain is None else {"domain": frozenset({None, domain})}
            found[(alias,)] = RowOf(rows.offset, values)
        return found

    async def copies(self, streams: Iterable[StreamRow]) -> int:
        """Compares usage and every copy of these streams; returns how many rows it read."""
        streams = list(streams)
        live = [stream for stream in streams if not self.ahead.superseded(stream.rows.stream)]
        await self._hanging(
            TenantUsage,
            FindingKind.USAGE,
            live,
            ("alias", "tier"),
            _usage,
            extra=lambda row: bool(row["blocks"] or row["bytes"]),
        )
        return sum([await self._copies_of(stream) for stream in streams])

    async def _copies_of(self, stream: StreamRow) -> int:
        rows, over = stream.rows, self.ahead.superseded(stream.rows.stream)
        names = {
            number: name
            for number, name in stream.holders.items()
            if name in rows.holders and not (over and rows.holders[name].durable_id is None)
        }
        attributes: dict[int, tuple[bytes, tuple[object, ...]]] = {}
        async for row in self._rows(row_sql.of_streams(CopyAttribute), [stream.number]):
            shared = tuple(row[name] for name in SHARED)
            attributes[row["id"]] = (row["alias"], shared)
        matched: dict[Place, int] = {}
        places: dict[tuple[int, int, int], tuple[Place, dict[bytes, Any], tuple[object, ...]]] = {}
        count = 0
        async for number, group, block, parent, attribute, since in self._rows(row_sql.COPIES, list(names)):
            count += 1
            key = (number, group, attribute)
            known = places.get(key)
            if known is None:
                alias, shared = attributes.get(attribute, (b"", ()))
                place = Place(names[number], group, alias)
                known = places[key] = (place, rows.rows.places.get(place, {}), shared)
            place, table, shared = known
            copy: Any = table.get(block)
            if copy is None:
                self._odd_copy(stream, place, block, _copy(parent, since, shared))
                continue
            matched[place] = matched.get(place, 0) + 1
            if copy.shared() != shared or copy.parent != parent or copy.since != since:
                at = self._event(stream.partition, copy.touched)
                self._differ(
                    FindingKind.COPY,
                    _where(stream, place, block),
                    _copy(parent, since, shared),
                    _copy(copy.parent, copy.since, copy.shared()),
                    at,
                )
        for place, held in rows.rows.places.items():
            if matched.get(place, 0) != len(held) and place.holder in names.values():
                number = next(number for number, name in names.items() if name == place.holder)
                await self._missing_copies(stream, place, number)
        return count

    def _odd_copy(self, stream: StreamRow, place: Place, block: bytes, row: Mapping[str, Any]) -> None:
        """A row for which the log has no copy in that place, perhaps one under another alias."""
        where, tables = _where(stream, place, block), stream.rows.rows
        for other, table in tables.places.items():
            copy = table.get(block)
            if other[:2] == place[:2] and isinstance(copy, RowCopy):
                at = self._event(stream.partition, copy.touched)
                self._add(
                    FindingKind.COPY, where, f"alias={place.alias.hex()}", f"alias={other.alias.hex()}", at
                )
                return
        ended = tables.ended.get((place.holder, place.group, block))
        at_end = None if ended is None else self._event(stream.partition, ended)
        self._add(FindingKind.COPY, where, told(row), None, at_end)

    async def _missing_copies(self, stream: StreamRow, place: Place, holder_number: int) -> None:
        there: set[bytes] = set()
        async for block, _ in self._rows(row_sql.BLOCKS, holder_number, place.group):
            there.add(block)
        for block, copy in stream.rows.rows.places[place].items():
            if block not in there:
                assert isinstance(copy, RowCopy)
                values = _copy(copy.parent, copy.since, copy.shared())
                at = self._event(stream.partition, copy.touched)
                self._add(FindingKind.COPY, _where(stream, place, block), None, told(values), at)

    async def adrift(self) -> None:
        """Copies whose holder no row describes."""
        for row in await self.connection.fetch(row_sql.ADRIFT):
            self._add(FindingKind.COPY, f"holder_id {row['holder_id']}", "copies of no holder", None, None)

    async def control(self, rows: ControlRows) -> None:
        """The tables of kv.control, at the position that `rows` stands for."""
        domains = {(name,): row for name, row in rows.domains.items()}
        numbers = {(number,): row for number, row in rows.registrations().items()}
        requests = {(number,): row for number, row in rows.requests().items()}
        limits: dict[tuple[Any, ...], RowOf] = dict(rows.limits)
        stores = {(name,): row for name, row in rows.stores.items()}
        await self._table(DurableHolder, FindingKind.STORE, ("durable_id",), stores, CONTROL.name)
        await self._table(Domain, FindingKind.DOMAIN, ("name",), domains, CONTROL.name)
        await self._table(Registration, FindingKind.REGISTRATION, ("epoch_no",), numbers, CONTROL.name)
        await self._table(DeletionRequest, FindingKind.REQUEST, ("number",), requests, CONTROL.name)
        await self._table(QuotaLimit, FindingKind.LIMIT, ("tenant", "tier", "unit"), limits, CONTROL.name)

    async def audit(self, rows: AuditRows) -> None:
        """What the auditor has said, at the position that `rows` stands for."""
        for model, kind, said in (
            (Verdict, FindingKind.VERDICT, rows.verdicts),
            (Checkpoint, FindingKind.CHECKPOINT, rows.checkpoints),
        ):
            expected: dict[tuple[Any, ...], RowOf] = {(offset,): row for offset, row in said.items()}
            await self._table(
                model, kind, ("offset",), expected, AUDIT.name, needed=lambda key: key[0] not in rows.doubtful
            )

    async def quota(self, rows: QuotaRows) -> None:
        """What the controller has said, at the position that `rows` stands for."""
        newest: dict[tuple[Any, ...], RowOf] = dict(rows.newest)
        await self._table(TenantQuota, FindingKind.QUOTA, ("tenant", "tier", "unit"), newest, QUOTA.name)
        changes: dict[tuple[Any, ...], RowOf] = {
            (offset,): row for offset, row in rows.told.items() if rows.vague or offset in rows.changes
        }
        await self._table(
            QuotaChange,
            FindingKind.QUOTA_CHANGE,
            ("offset",),
            changes,
            QUOTA.name,
            needed=lambda _: not rows.vague,
            surplus=not rows.vague,
        )

    async def _table(
        self,
        model: type[Base],
        kind: FindingKind,
        key: tuple[str, ...],
        expected: dict[tuple[Any, ...], RowOf],
        topic: str,
        *,
        needed: Callable[[tuple[Any, ...]], bool] = lambda _: True,
        surplus: bool = True,
    ) -> None:
        async for row in self._rows(row_sql.whole(model)):
            which = tuple(row[name] for name in key)
            wanted = expected.pop(which, None)
            if wanted is not None:
                self._differ(kind, _key(which), row, wanted.values, LogPlace(topic, 0, wanted.offset))
            elif surplus:
                self._add(kind, _key(which), _extra(row, key), None, None)
        for which, missing in expected.items():
            if needed(which):
                self._add(kind, _key(which), None, told(missing.values), LogPlace(topic, 0, missing.offset))

    def _event(self, partition: int, offset: int) -> LogPlace:
        return LogPlace(EVENTS.name, partition, offset)

    def _differ(
        self,
        kind: FindingKind,
        where: str,
        row: Mapping[str, Any],
        wanted: Mapping[str, Any],
        at: LogPlace | None,
    ) -> None:
        both = differing(row, wanted)
        if both is not None:
            self._add(kind, where, *both, at)

    def _add(
        self, kind: FindingKind, where: str, index: str | None, log: str | None, at: LogPlace | None
    ) -> None:
        self.found.add(Finding(kind, where, index, log, at))


SHARED = ("profile", "state", "lineage", "admitted_after", "pinned", "transfer")
"""Columns of `copy_attribute` in the order of `RowCopy.shared`."""


def _copy(parent: bytes, since: int, shared: tuple[object, ...]) -> dict[str, Any]:
    named = dict(zip(SHARED, shared, strict=True)) if shared else dict.fromkeys(SHARED, "unknown")
    return {"parent": parent, "since_offset": since, **named}


def _where(stream: StreamRow, place: Place, block: bytes) -> str:
    return f"{stream.rows.stream} {place.holder}/{place.group}/{block.hex()}"


def _key(which: tuple[Any, ...]) -> str:
    return "/".join(one.hex() if isinstance(one, bytes) else str(one) for one in which)


def _extra(row: Mapping[str, Any], key: tuple[str, ...]) -> str:
    hidden = {*key, "id", "stream_id", "content", "layout", "updated_at"}
    return told(row, [name for name in row.keys() if name not in hidden])  # noqa: SIM118 - rows aren't mappings


def _stream(rows: RowStream) -> dict[str, Any]:
    opening = rows.told
    return {
        "epoch_no": rows.epoch_no,
        "next_seq": rows.next_seq,
        "prev": rows.prev,
        "first_prev": rows.first_prev,
        "last_header": rows.prev,
        "status": rows.status.value,
        "sticky": rows.sticky,
        "draining": rows.draining,
        "engine_ended": rows.engine_ended,
        "engine_life": "" if opening is None else opening.engine_life,
        "engine": "" if opening is None else opening.engine,
        "engine_version": "" if opening is None else opening.engine_version,
        "removal": "none" if opening is None else opening.removal.value,
        "admission_known": opening is not None and opening.admission_known,
        "control_offset": rows.installed[0],
        "control_hash": rows.installed[1],
        "duplicates": rows.duplicates,
        "unknown_events": rows.unknown_events,
        "nonces": {alias.hex(): nonce for alias, nonce in rows.nonces.items()},
    }


def _holders(rows: RowStream) -> dict[tuple[Any, ...], RowOf]:
    found: dict[tuple[Any, ...], RowOf] = {}
    for name, view in rows.holders.items():
        told_of = rows.holder_of(name)
        values = {
            "tier": told_of.tier.value,
            "capacity_blocks": told_of.capacity_blocks,
            "durable_id": told_of.durable_id,
            "groups": [[g.index, g.kind.value, g.block_tokens, g.window] for g in told_of.groups],
            "inventory": rows.inventory_of(name),
            "orphans": view.orphans,
            "unassigned": view.unassigned,
        }
        found[(name,)] = RowOf(rows.offset, values)
    return found


def _profiles(rows: RowStream) -> dict[tuple[Any, ...], RowOf]:
    found: dict[tuple[Any, ...], RowOf] = {}
    for key, declared in rows.declarations.items():
        values = {
            "profile_id": profile_digest(declared.content),
            "content": declared.content.model_dump(mode="json"),
            "layout": declared.layout.model_dump(mode="json"),
            "block_bytes": list(declared.block_bytes),
            "missing": list(declared.content.missing()),
            "retired": key in rows.content.retired,
        }
        found[key] = RowOf(rows.declared_at.get(key, rows.offset), values)
    return found


def _answers(rows: RowStream) -> dict[tuple[Any, ...], RowOf]:
    return {
        key: RowOf(
            answer.offset,
            {
                "removed": answer.removed,
                "old_left": answer.old_left,
                "orphans": answer.orphans,
                "unassigned": answer.unassigned,
                "seq": answer.seq,
                "refused": answer.refused,
            },
        )
        for key, answer in rows.answers.items()
    }


def _usage(rows: RowStream) -> dict[tuple[Any, ...], RowOf]:
    return {
        key: RowOf(rows.offset, {"blocks": blocks, "bytes": bytes_})
        for key, (blocks, bytes_) in rows.usage().items()
        if blocks or bytes_
    }
