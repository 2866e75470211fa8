"""The tables of the index: the only definition, from which migrations are checked.

A stream's small state is columns and JSON; copies are narrow rows whose shared attributes are interned in
`copy_attribute`. People and auditors read the views of schema `compliance`, never these tables.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Python types to column types, and names for every constraint."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012
        int: BigInteger,
        str: Text,
        bytes: LargeBinary,
        bool: Boolean,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[Any]: JSONB,
        list[int]: ARRAY(BigInteger),
        list[str]: ARRAY(Text),
    }


def _stream_id(*, primary_key: bool = False) -> Mapped[int]:
    return mapped_column(ForeignKey("stream.id", ondelete="CASCADE"), primary_key=primary_key)


class PartitionProgress(Base):
    """How far one partition of one topic is applied, and whose turn (`term`) it is to write."""

    __tablename__ = "partition_progress"

    topic: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(Integer, primary_key=True)
    term: Mapped[int] = mapped_column(server_default=text("0"))
    next_offset: Mapped[int] = mapped_column(server_default=text("0"))
    log_id: Mapped[str] = mapped_column(server_default=text("''"))
    last_record_sha256: Mapped[bytes] = mapped_column(server_default=text("'\\x'"))
    rebuild_until: Mapped[int] = mapped_column(server_default=text("0"))
    """Below this offset the partition is being rebuilt and nothing is written to Kafka."""
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
    control_hash: Mapped[bytes] = mapped_column(server_default=text("'\\x'"))
    """Of `kv.control`: its running hash before `next_offset`, which the rows rest on."""


class PartitionTime(Base):
    """When records around an offset were appended, about once a second: turns positions into times."""

    __tablename__ = "partition_time"

    partition: Mapped[int] = mapped_column(Integer, primary_key=True)
    next_offset: Mapped[int] = mapped_column(primary_key=True)
    appended_at: Mapped[datetime]


class Stream(Base):
    """One (worker, rank) in one epoch, as far as its own chain tells."""

    __tablename__ = "stream"
    __table_args__ = (UniqueConstraint("partition", "worker", "rank", "epoch"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    partition: Mapped[int] = mapped_column(Integer)
    worker: Mapped[str]
    rank: Mapped[int] = mapped_column(Integer)
    epoch: Mapped[str]
    epoch_no: Mapped[int]
    next_seq: Mapped[int]
    prev: Mapped[bytes]
    first_prev: Mapped[bytes]
    last_header: Mapped[bytes]
    status: Mapped[str]
    fault: Mapped[str]
    sticky: Mapped[bool]
    draining: Mapped[bool]
    engine_ended: Mapped[bool]
    engine_life: Mapped[str]
    engine: Mapped[str]
    engine_version: Mapped[str]
    removal: Mapped[str]
    admission_known: Mapped[bool]
    control_offset: Mapped[int]
    control_hash: Mapped[bytes]
    duplicates: Mapped[int]
    unknown_events: Mapped[int]
    nonces: Mapped[dict[str, Any]]
    transfers: Mapped[dict[str, Any]]
    snapshot: Mapped[dict[str, Any] | None]
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Holder(Base):
    """What can hold copies within a stream; its groups in the fold's own JSON."""

    __tablename__ = "holder"
    __table_args__ = (UniqueConstraint("stream_id", "name"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    stream_id: Mapped[int] = _stream_id()
    name: Mapped[str]
    tier: Mapped[str]
    capacity_blocks: Mapped[int | None]
    durable_id: Mapped[str | None]
    groups: Mapped[list[Any]]
    inventory: Mapped[str]
    orphans: Mapped[int]
    unassigned: Mapped[int]


class StreamAlias(Base):
    """A domain's name within one stream; `domain` is null until this indexer has the domain's keys."""

    __tablename__ = "stream_alias"

    stream_id: Mapped[int] = _stream_id(primary_key=True)
    alias: Mapped[bytes] = mapped_column(primary_key=True)
    domain: Mapped[str | None] = mapped_column(index=True)


class Profile(Base):
    """A profile under the number that one domain of one stream gave it."""

    __tablename__ = "profile"

    stream_id: Mapped[int] = _stream_id(primary_key=True)
    alias: Mapped[bytes] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    profile_id: Mapped[str] = mapped_column(index=True)
    content: Mapped[dict[str, Any]]
    layout: Mapped[dict[str, Any]]
    block_bytes: Mapped[list[int]]
    missing: Mapped[list[str]]
    retired: Mapped[bool]


class CopyAttribute(Base):
    """What many copies of a stream share; `admitted_after` null = provenance unknown = oldest."""

    __tablename__ = "copy_attribute"
    __table_args__ = (
        Index(
            "uq_copy_attribute_value",
            "stream_id",
            "alias",
            "profile",
            "state",
            "lineage",
            "admitted_after",
            "pinned",
            "transfer",
            unique=True,
            postgresql_nulls_not_distinct=True,
        ),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    stream_id: Mapped[int] = _stream_id()
    alias: Mapped[bytes]
    profile: Mapped[int]
    state: Mapped[str]
    lineage: Mapped[str]
    admitted_after: Mapped[int | None]
    pinned: Mapped[bool]
    transfer: Mapped[str | None]


class Copy(Base):
    """One block on one (holder, group) since a position of its partition. No foreign keys: rows are only
    written by the fold, in the transaction that wrote what they name, and this is the hot table."""

    __tablename__ = "copy"

    holder_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    group_index: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    block: Mapped[bytes] = mapped_column(primary_key=True)
    parent: Mapped[bytes]
    attribute_id: Mapped[int]
    since_offset: Mapped[int]


# A copy that ended: from and to position, and why. No primary key: nothing names a span, a record may end one
# block twice, and every index costs ingest. Partitioned by day; what has no day's partition is in the default.
copy_span = Table(
    "copy_span",
    Base.metadata,
    Column("holder_id", BigInteger, nullable=False),
    Column("group_index", SmallInteger, nullable=False),
    Column("block", LargeBinary, nullable=False),
    Column("attribute_id", BigInteger, nullable=False),
    Column("from_offset", BigInteger, nullable=False),
    Column("to_offset", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("request", BigInteger),
    Column("ended_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Index("ix_copy_span_holder_id_to_offset", "holder_id", "to_offset"),
    Index("ix_copy_span_ended_at", "ended_at", postgresql_using="brin"),
    postgresql_partition_by="RANGE (ended_at)",
)


class TenantUsage(Base):
    """Blocks and bytes of one domain of one stream by tier; summed on read over what is not superseded."""

    __tablename__ = "tenant_usage"

    stream_id: Mapped[int] = _stream_id(primary_key=True)
    alias: Mapped[bytes] = mapped_column(primary_key=True)
    tier: Mapped[str] = mapped_column(primary_key=True)
    blocks: Mapped[int]
    bytes_: Mapped[Decimal] = mapped_column("bytes", Numeric(60, 0))


class DeletionAck(Base):
    """How a request stands at one domain of one stream, by that stream's newest word."""

    __tablename__ = "deletion_ack"

    stream_id: Mapped[int] = _stream_id(primary_key=True)
    alias: Mapped[bytes] = mapped_column(primary_key=True)
    request: Mapped[int] = mapped_column(primary_key=True, index=True)
    removed: Mapped[int]
    old_left: Mapped[int]
    orphans: Mapped[int]
    unassigned: Mapped[int]
    seq: Mapped[int]
    refused: Mapped[str | None]
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())


class DeadRecord(Base):
    """Keys of what went whole to the dead letters; the bytes are in Kafka only."""

    __tablename__ = "dead_record"

    topic: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(Integer, primary_key=True)
    offset: Mapped[int] = mapped_column(primary_key=True)
    reason: Mapped[str]
    found_at: Mapped[datetime] = mapped_column(server_default=func.now())


class DeadRecordPruned(Base):
    """How many keys of dead records were given up, so that their number is never forgotten."""

    __tablename__ = "dead_record_pruned"

    topic: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(Integer, primary_key=True)
    records: Mapped[int]
    foreign_streams: Mapped[int]
    newest_at: Mapped[datetime]


class DurableHolder(Base):
    """A durable store, the worker that owns it, and whether it is destroyed; `owner` null: nobody enrolled it."""

    __tablename__ = "durable_holder"

    durable_id: Mapped[str] = mapped_column(primary_key=True)
    tier: Mapped[str | None]
    owner: Mapped[str | None]
    destroyed: Mapped[bool] = mapped_column(server_default=text("false"))


class Domain(Base):
    """A domain and the tenant that owns and pays it."""

    __tablename__ = "domain"

    name: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(index=True)
    shared: Mapped[bool]
    admitted: Mapped[list[str]] = mapped_column(server_default=text("'{}'"))
    created_at_offset: Mapped[int]


class Registration(Base):
    """One epoch of one (worker, rank) as `kv.control` registered it; `epoch_no` is that record's offset."""

    __tablename__ = "registration"
    __table_args__ = (UniqueConstraint("worker", "rank", "epoch"),)

    epoch_no: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    worker: Mapped[str]
    rank: Mapped[int] = mapped_column(Integer)
    epoch: Mapped[str]
    engine_life: Mapped[str]
    partition: Mapped[int] = mapped_column(Integer)
    model: Mapped[str | None]
    superseded: Mapped[bool] = mapped_column(server_default=text("false"))
    fenced: Mapped[str | None]
    exit_attested: Mapped[bool] = mapped_column(server_default=text("false"))
    registered_at: Mapped[datetime]


class DeletionRequest(Base):
    """A numbered order of `kv.control`: `kind` deletion is audited, invalidation only carried out."""

    __tablename__ = "deletion_request"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str]
    scope_type: Mapped[str]
    scope: Mapped[dict[str, Any]]
    tenant: Mapped[str | None] = mapped_column(index=True)
    domain: Mapped[str | None]
    scope_ids: Mapped[list[bytes]] = mapped_column(ARRAY(LargeBinary))
    requester: Mapped[str]
    reason: Mapped[str]
    deadline_s: Mapped[int | None]
    requested_at: Mapped[datetime]
    record_sha256: Mapped[bytes]


class Verdict(Base):
    """What the auditor said of a request, by the offset of its record in `kv.audit`."""

    __tablename__ = "verdict"

    offset: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    request: Mapped[int] = mapped_column(index=True)
    verdict: Mapped[str]
    reasons: Mapped[list[Any]]
    frontier: Mapped[list[Any]]
    bundle_sha256: Mapped[bytes | None]
    given_at: Mapped[datetime]
    signer: Mapped[str]


class Checkpoint(Base):
    """The auditor's signed heads."""

    __tablename__ = "checkpoint"

    offset: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    positions: Mapped[list[Any]]
    control_hash: Mapped[bytes]
    signer: Mapped[str]


class QuotaLimit(Base):
    """A limit in force, by the newest control record."""

    __tablename__ = "quota_limit"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    tier: Mapped[str] = mapped_column(primary_key=True)
    unit: Mapped[str] = mapped_column(primary_key=True)
    soft: Mapped[int | None]
    hard: Mapped[int | None]
    set_at_offset: Mapped[int]


class TenantQuota(Base):
    """The newest quota state that the controller wrote for each (tenant, tier, unit)."""

    __tablename__ = "tenant_quota"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    tier: Mapped[str] = mapped_column(primary_key=True)
    unit: Mapped[str] = mapped_column(primary_key=True)
    used: Mapped[int]
    soft: Mapped[int | None]
    hard: Mapped[int | None]
    level: Mapped[str]
    shares: Mapped[list[Any]]
    term: Mapped[int]
    offset: Mapped[int]
    since: Mapped[datetime]
    """When the level became what it is."""


class QuotaChange(Base):
    """Every change of a quota level, kept as history."""

    __tablename__ = "quota_change"

    offset: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    tenant: Mapped[str] = mapped_column(index=True)
    tier: Mapped[str]
    unit: Mapped[str]
    used: Mapped[int]
    soft: Mapped[int | None]
    hard: Mapped[int | None]
    level: Mapped[str]
    changed_at: Mapped[datetime]


class AccessBatch(Base):
    """What one lookup replica told at once of the lookups that it answered; told twice, it is one row. `lost`
    counts lookups that it could not keep."""

    __tablename__ = "access_batch"

    replica: Mapped[str] = mapped_column(primary_key=True)
    from_at: Mapped[datetime] = mapped_column(primary_key=True)
    to_at: Mapped[datetime]
    lost: Mapped[int]
    logged_at: Mapped[datetime]
    """The broker's time of the record, which the rows age by."""


# Lookups by principal and domain within a batch. Partitioned by day; what has no day's partition is in the default.
access_log = Table(
    "access_log",
    Base.metadata,
    Column("logged_at", DateTime(timezone=True), nullable=False),
    Column("replica", Text, nullable=False),
    Column("from_at", DateTime(timezone=True), nullable=False),
    Column("to_at", DateTime(timezone=True), nullable=False),
    Column("principal", Text, nullable=False),
    Column("domain", Text, nullable=False),
    Column("lookups", BigInteger, nullable=False),
    Column("matched_blocks", BigInteger, nullable=False),
    Index("ix_access_log_domain_logged_at", "domain", "logged_at"),
    postgresql_partition_by="RANGE (logged_at)",
)


class SqlPrincipal(Base):
    """Which tenants a database role may see through the compliance views."""

    __tablename__ = "sql_principal"

    role_name: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(primary_key=True)
