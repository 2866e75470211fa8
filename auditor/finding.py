"""What a verdict is made of, in the words that proofs, commands and the log use."""

from __future__ import annotations

from typing import Literal

from events.ids import VerdictKind, VerdictReason
from events.model.audit import PartitionPosition
from events.model.control import Scope
from events.model.field import Record

Condition = Literal["P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9"]
Standing = Literal["met", "unmet", "waiting", "refuted", "not_evaluated"]
TransferState = Literal["open", "committed", "aborted", "rejected"]


class Reason(Record):
    """One unmet condition. `waits`: records to come can still meet it; `cure` says what a person can do."""

    reason: VerdictReason
    condition: Condition
    subject: str
    detail: str
    cure: str
    waits: bool = False


class Counterexample(Record):
    """A record that contradicts the claim by itself, with where it lies; ids are hex, the first few."""

    what: str
    worker: str
    rank: int
    epoch: str
    seq: int
    partition: int
    offset: int
    holder: str
    event: str
    admitted_after: int | None
    count: int
    ids: tuple[str, ...]


class HolderFound(Record):
    """One holder and what discharges it; `discharge` is "none" while it still owes. `read_to` is the newest record
    of its stream up to the frontier; `held` and `checksum` (sum of ids mod 2^128, hex) are what the auditor's own
    fold held of the domains in scope at the last acks; `stated` says where the holder's own statements came from."""

    worker: str
    rank: int
    engine_life: str
    epoch: str
    epoch_no: int
    holder: str
    tier: str
    durable_id: str | None
    inventory: str
    discharge: str
    ack_seq: int | None
    ack_offset: int | None
    installed: int | None
    nonce: int | None
    old_left: int | None
    removed: int
    read_to: int | None
    held: int | None
    checksum: str | None
    stated: Literal["pool", "derived", "none"]


class TransferFound(Record):
    """One transfer that may have carried something old and in scope; `seq` is of the record that ended it, or that
    began it while it is open. `epoch` is that of its destination."""

    worker: str
    rank: int
    epoch: str
    transfer: str
    holder: str
    blocks: int
    state: TransferState
    seq: int


class Verdict(Record):
    """As of `frontier`. `conditions` names every condition, the ones that nobody looked at too.

    `removed` counts blocks that holders say they removed for this request. What ends copies otherwise names no
    request: `cleared` (the whole holder was reset), `evicted` and `died` (the engine's memory ended) count copies in
    scope, not known to be younger, since the request was installed, whatever the cause. `rejected` were on their way
    and not let in. `recreated` are younger copies that came after an ack."""

    kind: VerdictKind
    request: int
    scope: Scope
    requester: str
    domains: tuple[str, ...]
    frontier: tuple[PartitionPosition, ...]
    control_hash: str
    closing_nonce: int | None
    conditions: dict[Condition, Standing]
    reasons: tuple[Reason, ...]
    counterexamples: tuple[Counterexample, ...]
    holders: tuple[HolderFound, ...]
    removed: int
    cleared: int
    died: int
    evicted: int
    rejected: int
    recreated: int
    transfers: tuple[TransferFound, ...]
    transfers_in_all: int
    records_ignored: tuple[str, ...]
    assumptions: tuple[str, ...]


CURES: dict[VerdictReason, str] = {
    VerdictReason.SEQ_GAP: "ask the hook for a snapshot that ends known (a resync does), then audit again",
    VerdictReason.CHAIN_BREAK: "restart the hook, so that it opens a new epoch with a snapshot; find the writer",
    VerdictReason.EQUIVOCATION: "two processes write one stream: stop one, let the other open a new epoch",
    VerdictReason.MISSING_ACK: "have the supervisor attest that this engine life ended, or re-attach its hook",
    VerdictReason.FRONTIER_BEHIND: "wait for this holder and audit again",
    VerdictReason.EPOCH_UNFENCED: "have the supervisor attest that the superseded engine life ended",
    VerdictReason.DEATH_BY_TIMEOUT_ONLY: "silence is not death: have the supervisor attest the engine's exit",
    VerdictReason.INVENTORY_INCOMPLETE: "have the hook inspect the pool, or reset the holder, then audit again",
    VerdictReason.DURABLE_TIER_UNCOVERED: "let the store's owner list it and ack, or record its destruction",
    VerdictReason.OPEN_TRANSFER: "wait until the transfer ends, or abort it at its destination",
    VerdictReason.UNKNOWN_LINEAGE: "reset the holder or end its engine life; nobody saw when this was admitted",
    VerdictReason.RETENTION_TRUNCATED: "keep kv.events longer than the audit takes; ask for a snapshot",
    VerdictReason.TOPIC_COMPACTED: "kv.control lost records; restore it from an archive or begin a new log",
    VerdictReason.MEMBERSHIP_INCOMPLETE: "register this worker or stop it, then audit again",
    VerdictReason.SCOPE_UNDECIDABLE: "give the auditor the keys of every domain in scope, or use a wider scope",
    VerdictReason.SHARED_DOMAIN: "delete the shared domain itself as well",
    VerdictReason.INVENTORY_DIVERGENCE: "ask for a snapshot from the pool, find out which records were wrong",
    VerdictReason.UNPARSEABLE_RECORD: "upgrade the auditor, or ask the hook for a snapshot",
    VerdictReason.DELETE_REFUSED: "do what the hook asks for, or end the engine life and attest its exit",
    VerdictReason.SIGNATURE_INVALID: "find who wrote it; a stream needs a new epoch under a certified key",
    VerdictReason.CHECKPOINT_UNVERIFIED: "find out who changed the log; restore it from an archive or begin a new one",
    VerdictReason.WITNESS_QUORUM_MISSING: "let enough of the configured witnesses cosign, then audit again",
    VerdictReason.NOT_EVALUATED: "meet the other conditions first, then audit again",
}
"""What people can do about each reason; a more precise cure, such as a hook's own, takes its place."""
