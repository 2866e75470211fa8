"""Streams, and the rows that hang on them but copies, against what the log says they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from auditor import row_sql
from auditor.row_column import (
    Names,
    alias_rows,
    answer_rows,
    holder_rows,
    profile_rows,
    stream_columns,
    usage_rows,
)
from auditor.row_control import ControlRows, RowOf
from auditor.row_finding import Finding, FindingKind, Findings, LogPlace, told, told_extra, told_key
from auditor.row_partition import PartitionRows
from auditor.row_stream import RowStream
from events.ids import StreamKey
from events.topic import EVENTS
from indexer.tables import Base, DeletionAck, Holder, Profile, StreamAlias, TenantUsage


@dataclass(slots=True)
class StreamRow:
    """A stream that both sides have: the index's number of it, and of its holders."""

    number: int
    rows: RowStream
    partition: int
    holders: dict[int, str] = field(default_factory=dict)

    def record(self, offset: int) -> LogPlace:
        """A record of its partition."""
        return LogPlace(EVENTS.name, self.partition, offset)


@dataclass(frozen=True, slots=True)
class StreamComparison:
    """`connection` is inside a repeatable-read transaction. `ahead` is kv.control read further than any record
    that the partitions hold. `names` tells domains from aliases, as far as keys are here; what differs goes into
    `found`."""

    connection: Any
    ahead: ControlRows
    names: Names | None
    found: Findings

    async def streams(self, partitions: Mapping[int, PartitionRows]) -> dict[StreamKey, StreamRow]:
        """Compares the streams of these partitions and what hangs on them but copies; returns those whose copies
        can be compared: that both sides have, the durable ones of superseded streams among them."""
        found: dict[StreamKey, StreamRow] = {}
        missing = {
            key for rows in partitions.values() for key in rows.streams if not self.ahead.superseded(key)
        }
        async for row in row_sql.rows(self.connection, row_sql.STREAMS, list(partitions)):
            key, partition = StreamKey(row["worker"], row["rank"], row["epoch"]), row["partition"]
            epoch = self.ahead.fold.epochs.get(key)
            if epoch is None or epoch.body.partition != partition or key in partitions[partition].strangers:
                continue
            folded = partitions[partition].streams.get(key)
            if folded is None:
                if partitions[partition].start > 0:
                    partitions[partition].headless[key] = None
                elif not self.ahead.superseded(key):
                    self.found.add(
                        Finding(FindingKind.STREAM, str(key), told({"next_seq": row["next_seq"]}), None, None)
                    )
                continue
            missing.discard(key)
            found[key] = StreamRow(row["id"], folded, partition)
            if not self.ahead.superseded(key):
                self.found.differ(
                    FindingKind.STREAM,
                    str(key),
                    row,
                    stream_columns(folded),
                    LogPlace(EVENTS.name, partition, folded.offset),
                )
        for key in sorted(missing):
            partition = self.ahead.fold.epochs[key].body.partition
            rows = partitions[partition].streams[key]
            at = LogPlace(EVENTS.name, partition, rows.offset)
            self.found.add(Finding(FindingKind.STREAM, str(key), None, told({"next_seq": rows.next_seq}), at))
        live = [stream for key, stream in found.items() if not self.ahead.superseded(key)]
        await self._hanging(Holder, FindingKind.HOLDER, live, ("name",), holder_rows)
        await self._number_holders(found.values())
        await self._hanging(Profile, FindingKind.PROFILE, live, ("alias", "number"), profile_rows)
        await self._hanging(DeletionAck, FindingKind.ACK, live, ("alias", "request"), answer_rows)
        await self._hanging(
            StreamAlias, FindingKind.ALIAS, live, ("alias",), partial(alias_rows, names=self.names)
        )
        return found

    async def _number_holders(self, streams: Iterable[StreamRow]) -> None:
        by_number = {stream.number: stream for stream in streams}
        async for row in row_sql.rows(self.connection, row_sql.of_streams(Holder), list(by_number)):
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
                    where = f"{current.rows.stream} {told_key(which)}"
                    self.found.add(Finding(kind, where, None, told(row.values), current.record(row.offset)))

        async for row in row_sql.rows(self.connection, row_sql.of_streams(model), list(waiting)):
            if current is None or row["stream_id"] != current.number:
                finish()
                current = waiting.pop(row["stream_id"])
                expected = expect(current.rows)
            which = tuple(row[name] for name in key)
            where = f"{current.rows.stream} {told_key(which)}"
            wanted = expected.pop(which, None)
            if wanted is not None:
                self.found.differ(kind, where, row, wanted.values, current.record(wanted.offset))
            elif extra(row):
                at = current.record(current.rows.offset)
                self.found.add(Finding(kind, where, told_extra(row, key), None, at))
        finish()
        for stream in waiting.values():
            current, expected = stream, expect(stream.rows)
            finish()

    async def usage(self, stream: StreamRow) -> None:
        """Compares what the stream's copies add up to; of a superseded stream nothing."""
        live = [] if self.ahead.superseded(stream.rows.stream) else [stream]
        await self._hanging(
            TenantUsage,
            FindingKind.USAGE,
            live,
            ("alias", "tier"),
            usage_rows,
            extra=lambda row: bool(row["blocks"] or row["bytes"]),
        )
