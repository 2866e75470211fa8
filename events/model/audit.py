"""Records of `kv.quota`, `kv.audit`, `kv.access`, `kv.subjects` and `kv.dead`."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, StringConstraints, WithJsonSchema

from events.ids import QuotaLevel, Tier, Unit, VerdictKind, VerdictReason
from events.model.field import Count, Hex32, Hex64, Name, Offset, PackedIds, Rank, Record, Text

MAX_SEGMENTS = 2_000
"""A record with more would come near the limit of a record's size; its writer splits."""


def _from_base64(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError("not base64") from error
    return value


RawBytes = Annotated[
    bytes,
    BeforeValidator(_from_base64),
    PlainSerializer(lambda raw: base64.b64encode(raw).decode(), return_type=str),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]


class QuotaShare(Record):
    """What one holder must free to bring its tenant below the hard limit."""

    worker: Name
    rank: Rank
    epoch: Name
    amount: Count


class QuotaState(Record):
    """Level-triggered, the newest per key (tenant, tier, unit) wins; written by the controller alone."""

    v: Literal[1] = 1
    tenant: Name
    tier: Tier
    unit: Unit
    used: Count
    soft: Count | None = None
    hard: Count | None = None
    level: QuotaLevel
    shares: tuple[QuotaShare, ...] = ()
    term: Offset


class PartitionPosition(Record):
    topic: Name
    partition: Count
    offset: Offset
    """Offset of the next record, so that 0 is «nothing yet»."""


class Checkpoint(Record):
    """The auditor's signed head: how far it has read, and the running hash of control there."""

    type: Literal["checkpoint"] = "checkpoint"
    log: Name
    positions: tuple[PartitionPosition, ...]
    control_hash: Hex32


class ReasonGiven(Record):
    reason: VerdictReason
    condition: Name
    subject: Text
    detail: Text
    cure: Text


class VerdictGiven(Record):
    """A verdict as of a frontier; `bundle_sha256` names the bundle that lets others recompute it."""

    type: Literal["verdict"] = "verdict"
    log: Name
    request: Offset
    verdict: VerdictKind
    reasons: tuple[ReasonGiven, ...]
    frontier: tuple[PartitionPosition, ...]
    bundle_sha256: Hex32 | None = None
    given_ms: Count


class IndexAccepted(Record):
    """An operator switched to a rebuilt index that differed from the old one."""

    type: Literal["index_accepted"] = "index_accepted"
    log: Name
    before: Hex32
    after: Hex32
    positions: tuple[PartitionPosition, ...]


class Segment(Record):
    """A closed run of one partition's records: offsets `first` up to, without, `next`, under the plain name of
    its topic. `root` is that of the RFC 6962 tree over its `records` (`auditor.segment`)."""

    topic: Name
    partition: Count
    first: Offset
    next: Offset
    records: Count
    root: Hex32


class SegmentsSealed(Record):
    """The main log grows by these leaves; obeyed only if it has `first_leaf` leaves by then, so that of two
    auditors who write at the same time one has written nothing."""

    type: Literal["segments_sealed"] = "segments_sealed"
    log: Name
    first_leaf: Count
    segments: Annotated[tuple[Segment, ...], Field(min_length=1, max_length=MAX_SEGMENTS)]


class CheckpointSigned(Record):
    """A C2SP checkpoint of the main log, whole; written again when witnesses have cosigned it."""

    type: Literal["checkpoint_signed"] = "checkpoint_signed"
    log: Name
    note: Annotated[str, StringConstraints(max_length=65_536)]


class SubjectsSealed(Record):
    """What kv.subjects held when the main log had `main_size` leaves, behind what was sealed of it before. It is no
    leaf: a bundle shows none of it. Of two for one size the first counts."""

    type: Literal["subjects_sealed"] = "subjects_sealed"
    log: Name
    main_size: Count
    segment: Segment


AuditStatement = Annotated[
    Checkpoint | VerdictGiven | IndexAccepted | SegmentsSealed | CheckpointSigned | SubjectsSealed,
    Field(discriminator="type"),
]


class AuditRecord(Record):
    """A statement under the auditor's Ed25519 signature over its compact JSON bytes."""

    v: Literal[1] = 1
    signer: Name
    signature: Hex64
    statement: RawBytes


class AccessEntry(Record):
    principal: Name
    domain: Name
    lookups: Count
    matched_blocks: Count


class AccessBatch(Record):
    """Lookups by principal and domain since the last batch; `lost` counts what could not be kept."""

    v: Literal[1] = 1
    replica: Name
    entries: tuple[AccessEntry, ...]
    lost: Count
    from_ms: Count
    to_ms: Count


class SubjectBound(Record):
    """Which leaves belong to a data subject, known here by a keyed pseudonym only."""

    v: Literal[1] = 1
    subject: Hex32
    domain: Name
    leaves: PackedIds


class DeadRecord(Record):
    """A record that could not be obeyed, whole, with the reason; (topic, partition, offset) is its key."""

    v: Literal[1] = 1
    topic: Name
    partition: Count
    offset: Offset
    reason: Text
    key: RawBytes | None = None
    value: RawBytes
    signature: RawBytes | None = None


class SnapshotToken(Record):
    """What an opaque token says once decoded: the log, and the next offset by partition of `kv.events`
    and of `kv.control`."""

    log: Name
    events: tuple[Annotated[int, Field(ge=0)], ...] = ()
    control: Offset = 0
