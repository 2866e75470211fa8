"""The index a second time, in a schema of its own: made, filled by COPY and put into the first one's place.

Everything here runs on one connection. The switch is one transaction of catalogue changes, whatever the
size: old tables and the views on them go, the fresh tables take the schema, the views are made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import MetaData, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from events.keyring import KeyRing
from indexer.bulk import encode, upsert
from indexer.postgres_write import ALIAS as ALIAS_ROWS
from indexer.postgres_write import (
    ATTRIBUTE_COLUMNS,
    HOLDER_COLUMNS,
    STREAM_COLUMNS,
    STREAM_KEY,
    USAGE,
)
from indexer.postgres_write import PROFILE as PROFILE_ROWS
from indexer.postgres_write import STANDING as STANDING_ROWS
from indexer.rebuild_fold import PartitionRebuild, RowIds, SpanRow, attribute_rows, copy_columns, span_columns
from indexer.row import holder_row, profile_row, standing_row, stream_row, usage_row
from indexer.tables import Base

FRESH = "kvledger_rebuild"
"""Holds a rebuild under way; what an interrupted one left in it goes with the next."""
PROGRESS = "partition_progress"
TABLES = (
    "stream",
    "holder",
    "profile",
    "copy_attribute",
    "stream_alias",
    "tenant_usage",
    "deletion_ack",
    "copy",
    "copy_span",
    "dead_record",
    "partition_time",
)
"""What a fold of `kv.events` fills, in the order in which everybody locks them."""
WITH = {
    "copy": ("ALTER TABLE {0}.copy DROP CONSTRAINT pk_copy",),
    "copy_span": (
        "CREATE TABLE {0}.copy_span_default PARTITION OF {0}.copy_span DEFAULT",
        "DROP INDEX {0}.ix_copy_span_holder_id_to_offset",
    ),
}
"""What belongs to a table; indexes are made once the rows are in."""
FINISH = (
    "ALTER TABLE {0}.copy ADD CONSTRAINT pk_copy PRIMARY KEY (holder_id, group_index, block)",
    "CREATE INDEX ix_copy_span_holder_id_to_offset ON {0}.copy_span (holder_id, to_offset)",
)
STREAM = upsert("stream", ("id", *STREAM_COLUMNS), key=STREAM_KEY, keep=True)
HOLDER = upsert("holder", ("id", *HOLDER_COLUMNS), key=("stream_id", "name"), keep=True)
ATTRIBUTE = upsert("copy_attribute", ("id", *ATTRIBUTE_COLUMNS), key=ATTRIBUTE_COLUMNS, keep=True)
CHUNK_ROWS = 50_000
JSON_ROWS = 2_000
LONG_S = 3_600.0

_T = TypeVar("_T")
_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
Moved = Callable[[int], None]
"""Told how many more rows are written."""


async def create(connection: Any) -> RowIds:
    """Empty tables in `FRESH`; returns the first ids that the index in force has never used."""
    await connection.execute(f"DROP SCHEMA IF EXISTS {FRESH} CASCADE")
    await connection.execute(f"CREATE SCHEMA {FRESH}")
    fresh = MetaData(schema=FRESH, naming_convention=Base.metadata.naming_convention)
    tables = [_source(name).to_metadata(fresh, schema=FRESH) for name in (PROGRESS, *TABLES)]
    for table in tables:
        await connection.execute(str(CreateTable(table).compile(dialect=_DIALECT)))
        for index in table.indexes:
            await connection.execute(str(CreateIndex(index).compile(dialect=_DIALECT)))
        for statement in WITH.get(table.name, ()):
            await connection.execute(statement.format(FRESH))
    ids = [
        await connection.fetchval(
            f"""SELECT CASE WHEN is_called THEN last_value + 1 ELSE last_value END
                FROM {(await _sequence(connection, "public", name))}"""  # noqa: S608
        )
        for name in ("stream", "holder", "copy_attribute")
    ]
    return RowIds(*ids)


def _source(name: str) -> Table:
    return Base.metadata.tables[name]


async def _sequence(connection: Any, schema: str, table: str) -> str:
    return str(await connection.fetchval("SELECT pg_get_serial_sequence($1, 'id')", f"{schema}.{table}"))


async def write_spans(connection: Any, rows: Sequence[SpanRow]) -> None:
    """Adds history; any number of times."""
    await connection.copy_records_to_table(
        "copy_span", records=rows, columns=span_columns(), schema_name=FRESH, timeout=LONG_S
    )


async def write_rows(
    connection: Any, topic: str, parts: Mapping[int, PartitionRebuild], keyring: KeyRing, moved: Moved
) -> None:
    """Everything else of all partitions, then the indexes. The connection's search path must be `FRESH`."""
    await _write_small(connection, parts, keyring)
    for number, part in parts.items():
        for copies in _chunks(part.copies(), CHUNK_ROWS):
            await connection.copy_records_to_table(
                "copy", records=copies, columns=copy_columns(), schema_name=FRESH, timeout=LONG_S
            )
            moved(len(copies))
        await connection.copy_records_to_table(
            "dead_record",
            records=[(topic, number, *row) for row in part.dead],
            columns=["topic", "partition", "offset", "reason", "found_at"],
            schema_name=FRESH,
            timeout=LONG_S,
        )
        await connection.copy_records_to_table(
            "partition_time",
            records=[(number, *row) for row in part.times],
            columns=["partition", "next_offset", "appended_at"],
            schema_name=FRESH,
            timeout=LONG_S,
        )
    for statement in FINISH:
        await connection.execute(statement.format(FRESH), timeout=LONG_S)


async def _write_small(connection: Any, parts: Mapping[int, PartitionRebuild], keyring: KeyRing) -> None:
    found: dict[str, list[dict[str, Any]]] = {
        sql: [] for sql in (STREAM, HOLDER, ALIAS_ROWS, ATTRIBUTE, PROFILE_ROWS, STANDING_ROWS, USAGE)
    }
    for number, part in parts.items():
        for state in part.states:
            names = part.names[state.key]
            own = {"stream_id": names.stream_id}
            found[STREAM].append({"id": names.stream_id, **stream_row(state, number)})
            found[HOLDER].extend(
                {"id": names.holders[holder.name], **own, **holder_row(holder)}
                for holder in state.holders.values()
            )
            aliases = {alias for alias, _ in {*state.usage, *state.profiles, *state.standings}}
            domains = keyring.aliases(state.key.worker, state.key.rank, state.epoch_no)
            found[ALIAS_ROWS].extend(
                {**own, "alias": alias, "domain": domains.get(alias)} for alias in sorted(aliases)
            )
            found[ATTRIBUTE].extend(attribute_rows(names))
            found[PROFILE_ROWS].extend({**own, **profile_row(row)} for row in state.profiles.values())
            found[STANDING_ROWS].extend(
                {**own, **standing_row(*which, row)} for which, row in state.standings.items()
            )
            found[USAGE].extend({**own, **usage_row(*which, row)} for which, row in state.usage.items())
    for sql, rows in found.items():
        for chunk in _chunks(iter(rows), JSON_ROWS):
            await connection.execute(sql, encode(chunk), timeout=LONG_S)
    for name in ("stream", "holder", "copy_attribute"):
        sequence = await _sequence(connection, FRESH, name)
        await connection.execute(
            f"SELECT setval('{sequence}', (SELECT coalesce(max(id), 0) + 1 FROM {FRESH}.{name}), false)"  # noqa: S608
        )


def _chunks(rows: Iterator[_T], size: int) -> Iterable[list[_T]]:
    while chunk := list(islice(rows, size)):
        yield chunk


async def switch(connection: Any) -> None:
    """Puts the fresh tables into the place of those in force; to be committed with the positions."""
    names = ", ".join(f"public.{name}" for name in TABLES)
    await connection.execute(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
    views = await connection.fetch(_VIEWS)
    grants = [row["sql"] for row in await connection.fetch(_TABLE_GRANTS, list(TABLES))]
    owners = [row["sql"] for row in await connection.fetch(_TABLE_OWNERS, list(TABLES))]
    for view in views:
        await connection.execute(f"DROP VIEW {view['name']}")
    await connection.execute(f"DROP TABLE {names}")
    await connection.execute(f"DROP TABLE {FRESH}.{PROGRESS}")
    for row in await connection.fetch(_TABLES_OF, FRESH):
        await connection.execute(f"ALTER TABLE {FRESH}.{row['name']} SET SCHEMA public")
    await connection.execute(f"DROP SCHEMA {FRESH}")
    for sql in (*owners, *grants):
        await connection.execute(sql)
    for view in views:
        for sql in (view["make"], *view["after"]):
            await connection.execute(sql)


_GRANTEE = "CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END"
# Views are found by what they use, so that one of an operator's own survives as well.
_VIEWS = f"""
WITH RECURSIVE used(oid, depth) AS (
    SELECT c.oid, 0 FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
    UNION
    SELECT r.ev_class, used.depth + 1
    FROM used JOIN pg_depend d ON d.refobjid = used.oid AND d.classid = 'pg_rewrite'::regclass
    JOIN pg_rewrite r ON r.oid = d.objid AND r.ev_class <> used.oid
)
SELECT c.oid::regclass::text AS name,
       format('CREATE VIEW %s %s AS %s', c.oid::regclass,
              CASE WHEN c.reloptions IS NULL THEN '' ELSE 'WITH (' || array_to_string(c.reloptions, ', ') || ')' END,
              pg_get_viewdef(c.oid)) AS make,
       ARRAY[format('ALTER VIEW %s OWNER TO %I', c.oid::regclass, pg_get_userbyid(c.relowner)),
             format('COMMENT ON VIEW %s IS %L', c.oid::regclass, obj_description(c.oid))]
       || coalesce((SELECT array_agg(format('GRANT %s ON %s TO %s', a.privilege_type, c.oid::regclass,
                                            {_GRANTEE}))
                    FROM aclexplode(c.relacl) a WHERE a.grantee <> c.relowner), '{{}}') AS after
FROM (SELECT oid, max(depth) AS depth FROM used GROUP BY oid) u JOIN pg_class c ON c.oid = u.oid
WHERE c.relkind = 'v' ORDER BY u.depth DESC
"""  # noqa: S608
_TABLE_GRANTS = f"""
SELECT format('GRANT %s ON public.%I TO %s', a.privilege_type, c.relname,
              {_GRANTEE}) AS sql
FROM pg_class c, aclexplode(c.relacl) a
WHERE c.relnamespace = 'public'::regnamespace AND c.relname = ANY ($1) AND a.grantee <> c.relowner
UNION ALL
SELECT format('GRANT %s ON SEQUENCE public.%I TO %s', a.privilege_type, s.relname,
              {_GRANTEE})
FROM pg_class s JOIN pg_depend d ON d.objid = s.oid AND d.deptype IN ('i', 'a')
JOIN pg_class c ON c.oid = d.refobjid, aclexplode(s.relacl) a
WHERE s.relkind = 'S' AND c.relnamespace = 'public'::regnamespace AND c.relname = ANY ($1)
AND a.grantee <> s.relowner
"""  # noqa: S608
_TABLE_OWNERS = """
SELECT format('ALTER TABLE public.%I OWNER TO %I', c.relname, pg_get_userbyid(c.relowner)) AS sql
FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relname = ANY ($1) AND c.relkind IN ('r', 'p')
"""
_TABLES_OF = """
SELECT quote_ident(relname) AS name FROM pg_class
WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'p') ORDER BY relkind DESC
"""
