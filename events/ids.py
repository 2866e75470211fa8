"""Names and closed sets used in events; nothing here is generated."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, NewType

BlockId = NewType("BlockId", bytes)
"""128-bit keyed content id of one block (16 bytes)."""
Alias = NewType("Alias", bytes)
"""A domain's 16-byte name within one stream epoch; only the domain's keys lead back to it."""
ProfileId = NewType("ProfileId", str)
"""Hex SHA-256 of a content profile's canonical bytes; its first 16 bytes are the root parent."""
KeyId = NewType("KeyId", str)
"""First 16 hex characters of the SHA-256 of a public key; the only form in which logs name keys."""

ROOT_PARENT = bytes(16)
"""Stands for «no parent resident: root of its profile» where parents are packed in columns."""


CANARY_WORKER = "kvledger.canary"
"""Reserved: the worker whose ranks are kvledger's own canaries. They hold nothing and are in no answer."""


class StreamKey(NamedTuple):
    """One (worker, rank) in one epoch: the unit of order, gaps and staleness."""

    worker: str
    rank: int
    epoch: str

    def __str__(self) -> str:
        return f"{self.worker}/{self.rank}/{self.epoch}"


class Tier(StrEnum):
    """Where a holder keeps copies; order is that of cumulative answers."""

    GPU = "gpu"
    CPU = "cpu"
    DISK = "disk"
    REMOTE = "remote"


class GroupKind(StrEnum):
    """What an attention group needs to serve a prefix."""

    FULL = "full"
    SLIDING_WINDOW = "sliding_window"
    RECURRENT = "recurrent"


class Inventory(StrEnum):
    """What a stream knows of a holder's content."""

    EMPTY = "empty"
    KNOWN = "known"
    PARTIAL = "partial"


class CopyState(StrEnum):
    """Readers credit committed copies only; every state is in scope of a deletion."""

    PENDING = "pending"
    COMMITTED = "committed"
    UNCERTAIN = "uncertain"
    INVALID = "invalid"


class Lineage(StrEnum):
    PREFILL = "prefill"
    TRANSFER = "transfer"
    ONLOAD = "onload"
    RESTORE = "restore"
    UNKNOWN = "unknown"


class EvictReason(StrEnum):
    CAPACITY = "capacity"
    DEMOTED = "demoted"
    EXPIRED = "expired"
    UNKNOWN = "unknown"


class InvalidateReason(StrEnum):
    DELETION = "deletion"
    MODEL_ROLLOUT = "model_rollout"
    INTEGRITY = "integrity"
    QUOTA = "quota"
    OPERATOR = "operator"


class StreamStatus(StrEnum):
    """What the fold itself knows of a stream; everything else is computed by the reader."""

    UNOPENED = "unopened"
    LIVE = "live"
    GAP = "gap"
    QUARANTINED = "quarantined"
    DRAINING = "draining"
    CLOSED = "closed"


class ExcludeReason(StrEnum):
    """Why a worker's rank was not scored in an answer (closed set of the lookup contract)."""

    STALE = "stale"
    SILENT = "silent"
    GAP = "gap"
    UNOPENED = "unopened"
    QUARANTINED = "quarantined"
    PROFILE_INCOMPLETE = "profile_incomplete"
    DRAINING = "draining"
    FENCED = "fenced"
    UNREGISTERED = "unregistered"
    UNCONFIRMED = "unconfirmed"
    UNPUBLISHED = "unpublished"


class Alarm(StrEnum):
    """What a hook has seen of its engine that its events can't tell."""

    UNPUBLISHED = "unpublished"
    """It serves requests that must have filled blocks, and no event of it was ever received."""
    DRAINING = "draining"
    """It is to be emptied as soon as it is idle: no new work should go there."""


class Basis(StrEnum):
    """What an echo rests on: the engine's own word, its replay socket, or nothing."""

    ENGINE = "engine"
    PUBLISHED = "published"
    UNCONFIRMED = "unconfirmed"


class Capability(StrEnum):
    """How finely an engine lets its hook remove blocks."""

    EVICT_BLOCKS = "evict_blocks"
    RESET = "reset"
    NONE = "none"


class Role(StrEnum):
    """Roles that the operator grants to signing keys."""

    OPERATOR = "operator"
    ENROLMENT = "enrolment"
    CONTROL = "control"
    SUPERVISOR = "supervisor"
    AUDITOR = "auditor"


class Unit(StrEnum):
    BLOCKS = "blocks"
    BYTES = "bytes"


class QuotaLevel(StrEnum):
    WITHIN = "within"
    OVER_SOFT_LIMIT = "over_soft_limit"
    OVER_HARD_LIMIT = "over_hard_limit"


class VerdictKind(StrEnum):
    PROVEN = "PROVEN"
    REFUTED = "REFUTED"
    PENDING = "PENDING"
    UNPROVABLE = "UNPROVABLE"


class VerdictReason(StrEnum):
    """The closed list of reasons of a verdict."""

    SEQ_GAP = "seq_gap"
    CHAIN_BREAK = "chain_break"
    EQUIVOCATION = "equivocation"
    MISSING_ACK = "missing_ack"
    FRONTIER_BEHIND = "frontier_behind"
    EPOCH_UNFENCED = "epoch_unfenced"
    DEATH_BY_TIMEOUT_ONLY = "death_by_timeout_only"
    INVENTORY_INCOMPLETE = "inventory_incomplete"
    DURABLE_TIER_UNCOVERED = "durable_tier_uncovered"
    OPEN_TRANSFER = "open_transfer"
    UNKNOWN_LINEAGE = "unknown_lineage"
    RETENTION_TRUNCATED = "retention_truncated"
    TOPIC_COMPACTED = "topic_compacted"
    MEMBERSHIP_INCOMPLETE = "membership_incomplete"
    SCOPE_UNDECIDABLE = "scope_undecidable"
    SHARED_DOMAIN = "shared_domain"
    INVENTORY_DIVERGENCE = "inventory_divergence"
    CHECKPOINT_UNVERIFIED = "checkpoint_unverified"
    WITNESS_QUORUM_MISSING = "witness_quorum_missing"
    UNPARSEABLE_RECORD = "unparseable_record"
    DELETE_REFUSED = "delete_refused"
    SIGNATURE_INVALID = "signature_invalid"
    NOT_EVALUATED = "not_evaluated"
