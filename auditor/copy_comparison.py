"""Copies of blocks, row by row, against what the log says they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from auditor import row_sql
from auditor.residency import Place
from auditor.row_column import SHARED, copy_columns
from auditor.row_control import ControlRows
from auditor.row_finding import Finding, FindingKind, Findings, told
from auditor.row_table import RowCopy
from auditor.stream_comparison import StreamRow
from indexer.tables import CopyAttribute


@dataclass(frozen=True, slots=True)
class CopyComparison:
    """`connection` is inside a repeatable-read transaction. `ahead` is kv.control read further than any record of the
    streams; what differs goes into `found`."""

    connection: Any
    ahead: ControlRows
    found: Findings

    async def copies(self, stream: StreamRow) -> int:
        """Compares every copy of the stream; returns how many rows it read."""
        rows, over = stream.rows, self.ahead.superseded(stream.rows.stream)
        names = {
            number: name
            for number, name in stream.holders.items()
            if name in rows.holders and not (over and rows.holders[name].durable_id is None)
        }
        attributes: dict[int, tuple[bytes, tuple[object, ...]]] = {}
        async for row in row_sql.rows(self.connection, row_sql.of_streams(CopyAttribute), [stream.number]):
            shared = tuple(row[name] for name in SHARED)
            attributes[row["id"]] = (row["alias"], shared)
        matched: dict[Place, int] = {}
        places: dict[tuple[int, int, int], tuple[Place, dict[bytes, Any], tuple[object, ...]]] = {}
        count = 0
        async for number, group, block, parent, attribute, since in row_sql.rows(
            self.connection, row_sql.COPIES, list(names)
        ):
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
                self._odd_copy(stream, place, block, copy_columns(parent, since, shared))
                continue
            matched[place] = matched.get(place, 0) + 1
            if copy.shared() != shared or copy.parent != parent or copy.since != since:
                at = stream.record(copy.touched)
                self.found.differ(
                    FindingKind.COPY,
                    _where(stream, place, block),
                    copy_columns(parent, since, shared),
                    copy_columns(copy.parent, copy.since, copy.shared()),
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
                at = stream.record(copy.touched)
                self.found.add(
                    Finding(
                        FindingKind.COPY,
                        where,
                        f"alias={place.alias.hex()}",
                        f"alias={other.alias.hex()}",
                        at,
                    )
                )
                return
        ended = tables.ended.get((place.holder, place.group, block))
        at_end = None if ended is None else stream.record(ended)
        self.found.add(Finding(FindingKind.COPY, where, told(row), None, at_end))

    async def _missing_copies(self, stream: StreamRow, place: Place, holder_number: int) -> None:
        there: set[bytes] = set()
        async for block, _ in row_sql.rows(self.connection, row_sql.BLOCKS, holder_number, place.group):
            there.add(block)
        for block, copy in stream.rows.rows.places[place].items():
            if block not in there:
                assert isinstance(copy, RowCopy)
                values = copy_columns(copy.parent, copy.since, copy.shared())
                at = stream.record(copy.touched)
                self.found.add(
                    Finding(FindingKind.COPY, _where(stream, place, block), None, told(values), at)
                )

    async def adrift(self) -> None:
        """Copies whose holder no row describes."""
        for row in await self.connection.fetch(row_sql.ADRIFT):
            self.found.add(
                Finding(FindingKind.COPY, f"holder_id {row['holder_id']}", "copies of no holder", None, None)
            )


def _where(stream: StreamRow, place: Place, block: bytes) -> str:
    return f"{stream.rows.stream} {place.holder}/{place.group}/{block.hex()}"
