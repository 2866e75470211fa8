"""What a proof says around its verdict, from the evidence alone: request, membership, checkpoint, timeline. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from auditor.anchoring import Anchor
from auditor.checkpoint import Note, NoteKey, cosigned_at, parse_head
from auditor.evidence import Evidence
from auditor.finding import Verdict
from auditor.proof import (
    CLAIM,
    NOT_CLAIMED,
    CheckpointStated,
    KeyStated,
    Membership,
    Moment,
    Predicate,
    RequestStated,
    StampStated,
    WitnessStated,
)
from auditor.verdict import is_canary
from events.signing import key_id

SHOWN_MOMENTS = 500


def make_predicate(
    verdict: Verdict, evidence: Evidence, anchor: Anchor | None, stamp: StampStated | None = None
) -> Predicate:
    """The predicate of a bundle with this verdict, evidence and anchor. `stamp` is what the anchor's time stamp was
    read to say."""
    request = evidence.request
    return Predicate(
        log=evidence.registry.log,
        claim=CLAIM,
        not_claimed=NOT_CLAIMED,
        request=RequestStated(
            record_sha256=request.record_sha256,
            reason=request.reason,
            key_scope=request.key_scope,
            written_ms=request.written_ms,
            deadline_s=request.deadline_s,
        ),
        verdict=verdict,
        membership=_membership(verdict, evidence),
        anchoring=next(
            (one for one in verdict.assumptions if one.startswith("anchoring: ")), "anchoring: none"
        ),
        checkpoint=None if anchor is None else state_checkpoint(anchor, stamp),
        timeline=tuple(_timeline(evidence))[:SHOWN_MOMENTS],
        verifier=f"kvledger {program_version()}",
    )


def told_alike(predicate: Predicate) -> Predicate:
    """A predicate without what whoever verifies can't recompute from the evidence."""
    checkpoint = predicate.checkpoint
    if checkpoint is not None:
        checkpoint = checkpoint.model_copy(update={"stamp": None})
    return predicate.model_copy(update={"verifier": "", "checkpoint": checkpoint})


def program_version() -> str:
    """Of the program that runs."""
    try:
        return version("kvledger")
    except PackageNotFoundError:
        return "unknown"


def _membership(verdict: Verdict, evidence: Evidence) -> Membership:
    registry = evidence.registry
    lives = registry.lives().values()
    basis = (
        one.removeprefix("membership: ") for one in verdict.assumptions if one.startswith("membership: ")
    )
    return Membership(
        basis=next(basis, "not evaluated"),
        operator=key_id(registry.operator_key),
        lives=len(lives),
        streams=len(registry.epochs),
        canaries=tuple(str(epochs[-1].stream) for epochs in lives if is_canary(evidence, epochs)),
        strangers=tuple(str(stream) for stream in sorted(evidence.strangers)),
        keys=tuple(
            KeyStated(key=key, roles=tuple(sorted(grant.roles)), revoked_at=grant.revoked_at)
            for key, grant in sorted(registry.grants.items())
        ),
    )


def state_checkpoint(anchor: Anchor, stamp: StampStated | None) -> CheckpointStated:
    """What a statement says of the checkpoint that it rests on."""
    head = parse_head(anchor.note.text)
    return CheckpointStated(
        origin=head.origin,
        size=head.size,
        root=head.root,
        quorum=anchor.policy.quorum,
        witnesses=tuple(
            WitnessStated(key=str(key), cosigned_s=_cosigned(anchor.note, key)) for key in anchor.policy.keys
        ),
        stamp=stamp,
    )


def _cosigned(note: Note, key: NoteKey) -> int | None:
    if not note.signed_by(key):
        return None
    mine = [cosigned_at(one) for one in note.signatures if (one.name, one.id) == (key.name, key.id)]
    return max(one for one in mine if one is not None)


def _timeline(evidence: Evidence) -> Iterator[Moment]:
    number = evidence.request.number
    for told in evidence.registry.told:
        mine = told.offset == number
        if told.offset < number or (told.kind == "deletion_requested" and not mine):
            continue
        if told.kind == "audit_nonce" and told.subject != f"request {number}":
            continue
        yield Moment(offset=told.offset, kind=told.kind, subject=told.subject, written_ms=told.written_ms)
