"""Every closed set of a verdict in plain words: for a reader who runs no fleet and has to act on the answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from auditor.finding import Condition, Reason, Standing
from auditor.paper.element import Tone
from events.ids import VerdictKind, VerdictReason
from events.model.control import (
    DomainScope,
    IdsScope,
    PrefixScope,
    ProfileScope,
    Scope,
    SubjectScope,
    TenantScope,
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """`title` in a few words, `sentence` what it means, `remedy` what a person can have done about it."""

    title: str
    sentence: str
    remedy: str


VERDICTS: dict[VerdictKind, tuple[Tone, str, str]] = {
    VerdictKind.PROVEN: (
        "good",
        "Proven: the data is gone from every registered holder.",
        "Every holder that had to answer has removed what this request covers and said so in its own signed "
        "record, or its engine has ended and its memory with it; the list of holders says on whose word. The auditor "
        "replayed the record from its beginning and found no copy left that existed before the request.",
    ),
    VerdictKind.REFUTED: (
        "bad",
        "Refuted: a copy was still there.",
        "The record contradicts the deletion. After a holder said that nothing was left, a copy from before the "
        "request "
        "was still held or came back. The records that show it are listed. Treat the data as not deleted.",
    ),
    VerdictKind.PENDING: (
        "waiting",
        "Pending: not proven yet.",
        "Something is missing that can still come, such as the answer of a holder that is running. Nothing found "
        "so far "
        "contradicts the deletion. Run the audit again; the reasons say what is waited for.",
    ),
    VerdictKind.UNPROVABLE: (
        "open",
        "Unprovable: the record cannot show it.",
        "The deletion may well have happened, but the evidence for it is missing, and waiting will not bring it. "
        "Each "
        "reason says what is missing and what would cure it. Do not report this request as completed.",
    ),
}

REASONS: dict[VerdictReason, Meaning] = {
    VerdictReason.SEQ_GAP: Meaning(
        "Records are missing",
        "Some numbered records of this worker never arrived, so nobody can say what it stored in between.",
        "Have the worker's reporting process send a complete list of what it holds (a resync), then audit again.",
    ),
    VerdictReason.CHAIN_BREAK: Meaning(
        "The records don't fit together",
        "Each record names the one before it, and here one names another. Something was changed, or two writers "
        "were at "
        "work.",
        "Restart the worker's reporting process, so that it begins a new series, and find out who wrote the odd "
        "record.",
    ),
    VerdictReason.EQUIVOCATION: Meaning(
        "Two different records have one number",
        "A worker has told two stories under one number. Neither can be relied on.",
        "Two processes report for one worker: stop one of them and let the other begin a new series.",
    ),
    VerdictReason.MISSING_ACK: Meaning(
        "A holder is gone without an answer",
        "This holder stopped reporting before it confirmed the removal, and nobody has vouched that its memory "
        "ended.",
        "If the engine has really ended, have its supervisor attest that; if it runs, connect its reporting again.",
    ),
    VerdictReason.FRONTIER_BEHIND: Meaning(
        "A holder has not answered yet",
        "This holder is running and has not confirmed the removal, or not yet answered the closing question.",
        "Wait for it and audit again. If it stays late, its operator looks at the worker.",
    ),
    VerdictReason.EPOCH_UNFENCED: Meaning(
        "An earlier engine was replaced, not ended",
        "A newer engine took this one's place. That the earlier one's memory is gone has not been shown.",
        "Have the supervisor attest that the replaced engine ended.",
    ),
    VerdictReason.DEATH_BY_TIMEOUT_ONLY: Meaning(
        "Silent, but not shown to be dead",
        "This holder went silent and was shut out for it. Silence is not death: its memory may still be there.",
        "Have the supervisor attest that the engine's process ended.",
    ),
    VerdictReason.INVENTORY_INCOMPLETE: Meaning(
        "It is not known all that a holder has",
        "This holder confirmed the removal without a complete view of what it holds, or it holds blocks that it "
        "can't "
        "assign to anybody.",
        "Have the holder inspected or emptied, then audit again.",
    ),
    VerdictReason.DURABLE_TIER_UNCOVERED: Meaning(
        "A store that survives restarts has not answered",
        "A disk or shared store may hold copies, and its owner has not confirmed the removal from its full "
        "listing, or "
        "it has no owner.",
        "Enrol an owner and let it list the store and confirm; or destroy the store, or every key that it keeps blocks "
        "under, and have that recorded.",
    ),
    VerdictReason.OPEN_TRANSFER: Meaning(
        "Data is on its way",
        "A transfer that may carry data of this request was begun and has not ended.",
        "Wait until it ends, or have it aborted where it arrives.",
    ),
    VerdictReason.UNKNOWN_LINEAGE: Meaning(
        "Nobody knows how old some copies are",
        "Copies are held of which nobody recorded when they were made: they may be from before the request.",
        "Empty the holder or end its engine; what is stored afterwards is new.",
    ),
    VerdictReason.RETENTION_TRUNCATED: Meaning(
        "The record's beginning was deleted",
        "Old records were removed from the log before they were audited, so the account has no beginning.",
        "Keep the log longer than an audit takes; let workers send complete lists, then audit again.",
    ),
    VerdictReason.TOPIC_COMPACTED: Meaning(
        "Records of the register are missing",
        "The register of requests, keys and workers has holes. What was in them can't be known.",
        "Restore the register from an archive, or begin a new log.",
    ),
    VerdictReason.MEMBERSHIP_INCOMPLETE: Meaning(
        "Somebody reports who is not registered",
        "A worker writes records and isn't in the register. It was never asked to delete anything.",
        "Register this worker or stop it, then audit again.",
    ),
    VerdictReason.SCOPE_UNDECIDABLE: Meaning(
        "It can't be told what the request covers",
        "For some copies or groups of data the auditor has no key, or the record doesn't show where they belong.",
        "Give the auditor the keys of all groups of data that are meant, or make a wider request.",
    ),
    VerdictReason.SHARED_DOMAIN: Meaning(
        "The data lies in a shared pool",
        "This tenant uses a pool that belongs to another. Whose blocks lie there can't be told.",
        "Request the deletion of the shared pool itself as well.",
    ),
    VerdictReason.INVENTORY_DIVERGENCE: Meaning(
        "A holder's own count differs from the record",
        "What this holder says it has is not what its records add up to. One of them is wrong.",
        "Have the holder list what is really in memory, and find out which records were wrong.",
    ),
    VerdictReason.CHECKPOINT_UNVERIFIED: Meaning(
        "The log was changed after it was sealed",
        "Records that were sealed earlier are not what they were.",
        "Find out who changed the log. Restore it from an archive, or begin a new one.",
    ),
    VerdictReason.WITNESS_QUORUM_MISSING: Meaning(
        "Too few outside witnesses have confirmed the log",
        "Fewer of the agreed witnesses than needed have countersigned the log's state.",
        "Have enough of them countersign, then audit again.",
    ),
    VerdictReason.UNPARSEABLE_RECORD: Meaning(
        "A record can't be read",
        "A record of ours is in a form that this auditor doesn't understand; what it says is unknown.",
        "Audit with a newer program, or have the worker send a complete list.",
    ),
    VerdictReason.DELETE_REFUSED: Meaning(
        "A holder refused",
        "This holder said that it can't or won't remove the data, and why.",
        "Do what it asks for, or end its engine and have that attested.",
    ),
    VerdictReason.SIGNATURE_INVALID: Meaning(
        "A signature doesn't hold",
        "A record isn't signed by the key that had to sign it: its sender is not shown.",
        "Find out who wrote it. The worker begins a new series under a certified key.",
    ),
    VerdictReason.NOT_EVALUATED: Meaning(
        "This was not looked at",
        "A condition could not be examined, because others must be met first or the program doesn't know how. What "
        "was "
        "not examined counts as unmet.",
        "See to the other reasons first, then audit again.",
    ),
}
LIST_LOST = Meaning(
    "Part of the list of the subject's data is gone",
    "Which blocks belong to a person is recorded in a list of its own. Records of it were removed before they were "
    "read, so the request may name too little.",
    "Audit with the archive that holds them, or request the deletion of the whole group of data.",
)
"""Of the list, in place of what the same reasons say of other records."""


def meaning_of(reason: Reason) -> Meaning:
    """In plain words."""
    lost = reason.reason in (VerdictReason.RETENTION_TRUNCATED, VerdictReason.TOPIC_COMPACTED)
    if lost and reason.condition == "P2" and reason.subject.startswith("request "):
        return LIST_LOST
    return REASONS[reason.reason]


CONDITIONS: dict[Condition, str] = {
    "P1": "The register of requests, keys and workers is complete, signed, and the same that every worker saw.",
    "P2": "Everybody who may hold data is registered, and all who have not ended have confirmed the removal.",
    "P3": "Of every holder the record is complete from a known state on.",
    "P4": "At its last confirmation no holder had a copy left from before the request.",
    "P5": "After a confirmation no old copy came back.",
    "P6": "Memory counts as gone only if its end is attested; lasting stores have answered for their whole "
    "content, or can't be read any more.",
    "P7": "What the holders say they have is what the record adds up to.",
    "P8": "No transfer is under way that may carry old data.",
    "P9": "After all had confirmed, each was asked once more, and has answered.",
}

STANDINGS: dict[Standing, str] = {
    "met": "met",
    "unmet": "not met",
    "waiting": "not met yet",
    "refuted": "contradicted",
    "not_evaluated": "not examined, which counts as not met",
}

ENDS: tuple[tuple[str, str, str], ...] = (
    ("removed", "removed one by one", "blocks that records name as removed for this request"),
    (
        "cleared",
        "ended by a reset",
        "copies that went when a whole holder was emptied since, on this request or another: a reset names none",
    ),
    ("evicted", "displaced", "copies that made room for others since, whatever the cause"),
    ("died", "ended with an engine", "copies in memory whose engine ended since"),
    ("rejected", "turned away", "copies that were on their way and were not let in"),
    ("recreated", "made anew", "copies younger than the request that came afterwards; not part of it"),
)

MOMENTS: dict[str, str] = {
    "deletion_requested": "the deletion was requested",
    "audit_nonce": "the auditor asked all holders once more",
    "registered": "a worker began a new series",
    "fenced": "a worker was shut out",
    "exit_attested": "an engine's end was attested",
    "holder_destroyed": "a store's destruction was recorded",
    "key_listed": "it was recorded where a store's key is kept",
    "key_destroyed": "a key's destruction was recorded",
}


def scope_in_words(scope: Scope) -> str:
    match scope:
        case TenantScope():
            return f"everything of tenant {scope.tenant}, in all of its domains"
        case DomainScope():
            return f"everything in domain {scope.domain}"
        case SubjectScope():
            return f"everything of data subject {scope.subject} in domain {scope.domain}"
        case PrefixScope():
            return f"a prefix of {len(scope.ids)} blocks in domain {scope.domain}, and all that continues it"
        case ProfileScope():
            return f"everything computed under profile {scope.profile.hex()}, of all tenants"
        case IdsScope():
            return f"{len(scope.ids)} listed blocks in domain {scope.domain}, and all that continue them"
