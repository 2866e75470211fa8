"""What is changed by hand in the index of `indexed`, what an audit has to say of each, and how it is undone."""

from __future__ import annotations

from collections.abc import Iterator

from auditor.row_finding import FindingKind
from tests.integration.audit.indexed import BLOCKS, in_database

HOLDER = "(SELECT h.id FROM holder h JOIN stream s ON s.id = h.stream_id WHERE s.worker = 'gpu-0' AND h.name = 'gpu')"
STREAM = "(SELECT id FROM stream WHERE worker = 'gpu-0')"
BLOCK = f"'\\x{BLOCKS[4].hex()}'"
OTHER = "'\\x" + "ab" * 16 + "'"
ROW = f"holder_id = {HOLDER} AND block = {BLOCK}"
PENDING = (
    "INSERT INTO copy_attribute (stream_id, alias, profile, state, lineage, admitted_after, pinned, transfer) "
    "SELECT stream_id, alias, profile, 'pending', lineage, admitted_after, pinned, transfer "
    f"FROM copy_attribute WHERE id = (SELECT attribute_id FROM copy WHERE {ROW})"
)

Case = tuple[FindingKind, str, str | None, str | None, str]

CASES: dict[str, Case] = {
    # what, the kind found, the table to restore, what the index then says, what the log says, the tampering
    "copy deleted": (FindingKind.COPY, "copy", None, "state=committed", f"DELETE FROM copy WHERE {ROW}"),
    "copy added": (
        FindingKind.COPY, "copy", "state=committed", None,
        f"INSERT INTO copy SELECT holder_id, group_index, {OTHER}, parent, attribute_id, since_offset "
        f"FROM copy WHERE {ROW}",
    ),
    "copy's state altered": (
        FindingKind.COPY, "copy", "state=pending", "state=committed",
        f"WITH a AS ({PENDING} RETURNING id) UPDATE copy SET attribute_id = a.id FROM a WHERE {ROW}",
    ),
    "copy's provenance altered": (
        FindingKind.COPY, "copy_attribute", "admitted_after=999", "admitted_after=none",
        f"UPDATE copy_attribute SET admitted_after = 999 WHERE stream_id = {STREAM} AND admitted_after IS NULL",
    ),
    "copy unpinned": (
        FindingKind.COPY, "copy_attribute", "pinned=False", "pinned=True",
        f"UPDATE copy_attribute SET pinned = false WHERE stream_id = {STREAM} AND pinned",
    ),
    "copy's parent altered": (
        FindingKind.COPY, "copy", f"parent={'ab' * 16}", f"parent={BLOCKS[3].hex()}",
        f"UPDATE copy SET parent = {OTHER} WHERE {ROW}",
    ),
    "copy's begin altered": (
        FindingKind.COPY, "copy", "since_offset=0", "since_offset=3",
        f"UPDATE copy SET since_offset = 0 WHERE {ROW}",
    ),
    "copies adrift": (
        FindingKind.COPY, "copy", "copies of no holder", None,
        f"UPDATE copy SET holder_id = 4000000 WHERE {ROW}",
    ),
    "usage altered": (
        FindingKind.USAGE, "tenant_usage", "blocks=5", "blocks=6",
        f"UPDATE tenant_usage SET blocks = 5 WHERE stream_id = {STREAM} AND tier = 'gpu'",
    ),
    "usage removed": (
        FindingKind.USAGE, "tenant_usage", None, "bytes=600",
        f"DELETE FROM tenant_usage WHERE stream_id = {STREAM}",
    ),
    "offset moved back": (
        FindingKind.POSITION, "partition_progress", "next_offset=4", "last_record_sha256=",
        "UPDATE partition_progress SET next_offset = 4 WHERE topic LIKE '%kv.events' AND partition = 1",
    ),
    "offset moved past the log": (
        FindingKind.POSITION, "partition_progress", "next_offset=100000", "the log ends at",
        "UPDATE partition_progress SET next_offset = 100000 WHERE topic LIKE '%kv.events' AND partition = 0",
    ),
    "another log's": (
        FindingKind.POSITION, "partition_progress", "log_id=other", "log_id=",
        "UPDATE partition_progress SET log_id = 'other' WHERE topic LIKE '%kv.events' AND partition = 0",
    ),
    "control's hash altered": (
        FindingKind.POSITION, "partition_progress", "control_hash=00", "control_hash=",
        "UPDATE partition_progress SET control_hash = '\\x00' WHERE topic LIKE '%kv.control'",
    ),
    "tombstone removed": (
        FindingKind.REQUEST, "deletion_request", None, "requester=dpo",
        "DELETE FROM deletion_request WHERE tenant = 'acme'",
    ),
    "request invented": (
        FindingKind.REQUEST, "deletion_request", "reason=made up", None,
        "INSERT INTO deletion_request SELECT 1, kind, scope_type, scope, tenant, domain, scope_ids, requester, "
        "'made up', deadline_s, requested_at, record_sha256 FROM deletion_request WHERE tenant = 'acme'",
    ),
    "request given to another tenant": (
        FindingKind.REQUEST, "deletion_request", "tenant=nobody", "tenant=late",
        "UPDATE deletion_request SET tenant = 'nobody' WHERE domain = 'later'",
    ),
    "ack altered": (
        FindingKind.ACK, "deletion_ack", "removed=20", "removed=2",
        f"UPDATE deletion_ack SET removed = 20 WHERE stream_id = {STREAM}",
    ),
    "ack removed": (
        FindingKind.ACK, "deletion_ack", None, "old_left=0",
        f"DELETE FROM deletion_ack WHERE stream_id = {STREAM}",
    ),
    "limit changed": (
        FindingKind.LIMIT, "quota_limit", "hard=500", "hard=5", "UPDATE quota_limit SET hard = 500",
    ),
    "limit removed": (FindingKind.LIMIT, "quota_limit", None, "soft=1", "DELETE FROM quota_limit"),
    "quota altered": (
        FindingKind.QUOTA, "tenant_quota", "used=0", "used=2", "UPDATE tenant_quota SET used = 0",
    ),
    "breach hidden": (
        FindingKind.QUOTA_CHANGE, "quota_change", None, "level=over_soft_limit",
        "DELETE FROM quota_change WHERE level = 'over_soft_limit'",
    ),
    "domain sold": (
        FindingKind.DOMAIN, "domain", "tenant=globex", "tenant=acme",
        "UPDATE domain SET tenant = 'globex' WHERE name = 'acme-chat'",
    ),
    "tenant let in": (
        FindingKind.DOMAIN, "domain", "admitted=[globex,initech]", "admitted=[globex]",
        "UPDATE domain SET admitted = '{globex,initech}' WHERE name = 'acme-chat'",
    ),
    "epoch fenced by nobody": (
        FindingKind.REGISTRATION, "registration", "fenced=operator", "fenced=none",
        "UPDATE registration SET fenced = 'operator' WHERE worker = 'gpu-0'",
    ),
    "exit attested by nobody": (
        FindingKind.REGISTRATION, "registration", "exit_attested=True", "exit_attested=False",
        "UPDATE registration SET exit_attested = true WHERE worker = 'gpu-0'",
    ),
    "registration removed": (
        FindingKind.REGISTRATION, "registration", None, "worker=gpu-0",
        "DELETE FROM registration WHERE worker = 'gpu-0'",
    ),
    "holder said to be known": (
        FindingKind.HOLDER, "holder", "inventory=known", "inventory=empty",
        f"UPDATE holder SET inventory = 'known' WHERE id = {HOLDER}",
    ),
    "profile's price altered": (
        FindingKind.PROFILE, "profile", "block_bytes=[1]", "block_bytes=[100]",
        f"UPDATE profile SET block_bytes = '{{1}}' WHERE stream_id = {STREAM}",
    ),
    "alias removed": (
        FindingKind.ALIAS, "stream_alias", None, "", f"DELETE FROM stream_alias WHERE stream_id = {STREAM}",
    ),
    "stream said to be live": (
        FindingKind.STREAM, "", "status=draining", "status=live",
        "UPDATE stream SET status = 'draining' WHERE worker = 'gpu-0'",
    ),
    "stream's number moved": (
        FindingKind.STREAM, "", "next_seq=3", "next_seq=4",
        "UPDATE stream SET next_seq = 3 WHERE worker = 'gpu-0'",
    ),
    "store given away": (
        FindingKind.STORE, "durable_holder", "owner=gpu-0", "owner=again",
        "UPDATE durable_holder SET owner = 'gpu-0'",
    ),
    "verdict turned": (
        FindingKind.VERDICT, "verdict", "verdict=PROVEN", "verdict=PENDING", "UPDATE verdict SET verdict = 'PROVEN'",
    ),
    "checkpoint invented": (
        FindingKind.CHECKPOINT, "checkpoint", "signer=nobody", None,
        "INSERT INTO checkpoint VALUES (77, '[]', '', 'nobody')",
    ),
}  # fmt: skip
UNDO = "UPDATE stream SET status = 'live', next_seq = 4 WHERE worker = 'gpu-0'"


def waves() -> Iterator[dict[str, Case]]:
    """Cases that don't disturb each other: of each table one. A moved position changes what all is compared with."""
    left = dict(CASES)
    while left:
        wave: dict[str, Case] = {}
        tables: set[str] = set()
        for what, case in list(left.items()):
            alone = case[1] == "partition_progress"
            if case[1] not in tables and not (alone and wave) and "partition_progress" not in tables:
                wave[what] = left.pop(what)
                tables.add(case[1])
        yield wave


async def restore(database: str, table: str) -> None:
    saved = f"saved_{table}"
    [columns] = await in_database(
        database,
        "SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns "
        f"WHERE table_name = '{saved}'",
    )
    await in_database(
        database,
        f"DELETE FROM {table}",
        f"INSERT INTO {table} ({columns[0][0]}) OVERRIDING SYSTEM VALUE SELECT * FROM {saved}",
        f"DROP TABLE {saved}",
    )
