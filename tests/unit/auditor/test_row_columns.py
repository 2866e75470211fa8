"""Every column of every table that an audit of the index reads is compared, or said not to be and why."""

from __future__ import annotations

from auditor.record import StreamRecord, read_record
from auditor.row_column import (
    NOT_COMPARED,
    SHARED,
    answer_rows,
    holder_rows,
    profile_rows,
    stream_columns,
)
from auditor.row_control import AuditRows, ControlRows, QuotaRows
from auditor.row_stream import RowStream
from events.codec import dump
from events.ids import QuotaLevel, Role, StreamKey, Tier, Unit, VerdictKind
from events.kafka.connection import RawRecord
from events.model.audit import AuditRecord, Checkpoint, QuotaState, VerdictGiven
from events.model.control import DeletionRequested, DomainCreated, HolderEnrolled, LimitSet, TenantScope
from events.model.part import Ack, RequestStanding
from events.signing import verify
from indexer.tables import Base
from tests.support.log import ALIAS, ControlLog, StreamBuilder, declared, opened


def compared() -> dict[str, set[str]]:
    """Columns by table, of one row of each."""
    stream, rows = StreamBuilder(), RowStream(StreamKey("w0", 0, "e1"), 5)
    ack = Ack(requests=(RequestStanding(request=3, removed=0, old_left=0),))
    told = read_record(0, 0, stream.seal(opened(), events=[declared(), ack]).value, None, lambda _: None)
    assert isinstance(told, StreamRecord)
    rows.apply(told)
    control, audit, quota = ControlRows(verify), AuditRows(verify), QuotaRows()
    log = ControlLog()
    log.register()
    for body, role in (
        (DomainCreated(domain="acme", tenant="acme"), Role.CONTROL),
        (LimitSet(tenant="acme", tier=Tier.GPU, unit=Unit.BLOCKS, hard=3), Role.CONTROL),
        (DeletionRequested(scope=TenantScope(tenant="acme"), requester="dpo"), Role.CONTROL),
        (HolderEnrolled(durable_id="store", tier=Tier.DISK, owner="w0"), Role.ENROLMENT),
    ):
        log.append(body, role)
    for offset, (value, signature) in enumerate(log.records):
        control.feed(RawRecord("kv.control", 0, offset, None, value, signature, 0))
    signer = log.signers[Role.AUDITOR]
    for offset, statement in enumerate(
        (
            VerdictGiven(
                log=log.log, request=3, verdict=VerdictKind.PENDING, reasons=(), frontier=(), given_ms=1
            ),
            Checkpoint(log=log.log, positions=(), control_hash=bytes(32)),
        )
    ):
        raw = dump(statement)
        record = AuditRecord(signer=signer.id, signature=signer.sign(raw), statement=raw)
        audit.feed(RawRecord("kv.audit", 0, offset, None, dump(record), None, 0), control.fold)
    state = QuotaState(
        tenant="acme", tier=Tier.GPU, unit=Unit.BLOCKS, used=1, level=QuotaLevel.WITHIN, term=1
    )
    quota.feed(RawRecord("kv.quota", 0, 0, None, dump(state), None, 0))
    return {
        "stream": set(stream_columns(rows)),
        "holder": set(holder_rows(rows)["gpu",].values),
        "profile": set(profile_rows(rows)[ALIAS, 0].values),
        "deletion_ack": set(answer_rows(rows)[ALIAS, 3].values),
        "stream_alias": {"domain"},
        "tenant_usage": {"blocks", "bytes"},
        "copy": {"parent", "since_offset"},
        "copy_attribute": {"alias", *SHARED},
        "domain": set(control.domains["acme"].values),
        "quota_limit": set(next(iter(control.limits.values())).values),
        "durable_holder": set(control.stores["store"].values),
        "registration": set(next(iter(control.registrations().values())).values),
        "deletion_request": set(next(iter(control.requests().values())).values),
        "verdict": set(audit.verdicts[0].values),
        "checkpoint": set(audit.checkpoints[1].values),
        "tenant_quota": set(next(iter(quota.newest.values())).values),
        "quota_change": set(quota.told[0].values),
    }


def test_no_column_is_left_out_without_a_reason() -> None:
    found = compared()
    for table, columns in found.items():
        named = {column.name for column in Base.metadata.tables[table].columns}
        assert columns | NOT_COMPARED.get(table, {}).keys() == named, table
        assert not columns & NOT_COMPARED.get(table, {}).keys(), table
