"""What a proof says around its verdict, from the evidence alone: request, membership, checkpoint, timeline, and whose
word it rests on. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from auditor.anchoring import Anchor
from auditor.checkpoint import Note, NoteKey, cosigned_at, parse_head
from auditor.evidence import Evidence
from auditor.finding import Verdict
from auditor.proof import (
    CLAIM,
    CLAIMS,
    NOT_CLAIMED,
    AttestationStated,
    CheckpointStated,
    HoldStated,
    KeyStated,
    Membership,
    Moment,
    Predicate,
    RequestStated,
    StampStated,
    WitnessStated,
)
from auditor.shredding import SHREDDED, declared_keys
from auditor.verdict import is_canary
from events.model.control import (
    ExitAttested,
    HolderDestroyed,
    HoldReleased,
    HoldSet,
    KeyDestroyed,
    TenantScope,
)
from events.signing import key_id

SHOWN_MOMENTS = 500
_NAMED = re.compile(r"kv\.control/(\d+)")


def make_predicate(
    verdict: Verdict,
    evidence: Evidence,
    anchor: Anchor | None,
    stamp: StampStated | None = None,
    given_ms: int | None = None,
) -> Predicate:
    """The predicate of a bundle with this verdict, evidence and anchor. `stamp` is what the anchor's time stamp was
    read to say, `given_ms` the auditor's clock."""
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
        given_ms=given_ms,
        attestations=tuple(_attestations(verdict, evidence)),
        holds=tuple(_holds(evidence)),
    )


def same_told(found: Predicate, stated: Predicate) -> bool:
    """Whether a stated predicate says what the evidence was found to give, but for what nobody can recompute from
    that. What an older program left out may be missing."""
    checkpoint, stamped = found.checkpoint, stated.checkpoint
    if checkpoint is not None and stamped is not None:
        checkpoint = checkpoint.model_copy(update={"stamp": stamped.stamp})
    left_out = {
        name: None
        for name, value in (("attestations", stated.attestations), ("holds", stated.holds))
        if value is None
    }
    likened = {"verifier": stated.verifier, "given_ms": stated.given_ms, "checkpoint": checkpoint, **left_out}
    if stated.claim in CLAIMS:
        likened["claim"] = stated.claim
    return found.model_copy(update=likened) == stated


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
    for told in evidence.registry.timeline.told:
        mine = told.offset == number
        if told.offset < number or (told.kind == "deletion_requested" and not mine):
            continue
        if told.kind == "audit_nonce" and told.subject != f"request {number}":
            continue
        yield Moment(offset=told.offset, kind=told.kind, subject=told.subject, written_ms=told.written_ms)


def _attestations(verdict: Verdict, evidence: Evidence) -> Iterator[AttestationStated]:
    """The records that some holder's discharge names, and those of destroyed stores and of shredded ones' keys."""
    named = {int(offset) for one in verdict.holders for offset in _NAMED.findall(one.discharge)}
    stores = {one.durable_id for one in verdict.holders if one.discharge == "destroyed"}
    shreds = {
        one.durable_id for one in verdict.holders if one.discharge.startswith(SHREDDED) and one.durable_id
    }
    keys = frozenset[bytes]().union(*(declared_keys(evidence, store) for store in shreds))
    for word in evidence.registry.timeline.words:
        attester: str | None = None
        match word.body:
            case ExitAttested() as body if word.offset in named:
                subject, attester = f"{body.worker} {body.engine_life}", body.attester
            case HolderDestroyed() as body if body.durable_id in stores:
                subject = body.durable_id
            case KeyDestroyed() as body if body.key in keys:
                subject = f"{body.key.hex()} in {body.ring}"
            case _:
                continue
        yield AttestationStated(
            offset=word.offset,
            kind=body.kind,
            subject=subject,
            attester=attester,
            evidence=body.evidence,
            signer=word.header.signer,
            written_ms=word.header.written_ms,
        )


def _holds(evidence: Evidence) -> list[HoldStated]:
    """Legal holds on something in scope that stand, or stood when the request was written. One that is placed
    again under its name takes the earlier one's place."""
    found: list[HoldStated] = []
    for word in evidence.registry.timeline.words:
        who = word.header.key_scope or word.header.signer
        if isinstance(word.body, HoldSet) and _reaches(evidence, word.body):
            found = [one for one in found if one.hold != word.body.hold or one.released_at is not None]
            found.append(
                HoldStated(
                    offset=word.offset,
                    hold=word.body.hold,
                    domain=word.body.domain,
                    tenant=word.body.tenant,
                    reason=word.body.reason,
                    placed_by=who,
                    signer=word.header.signer,
                    written_ms=word.header.written_ms,
                    released_at=None,
                    released_by=None,
                    released_ms=None,
                )
            )
        elif isinstance(word.body, HoldReleased):
            end = {"released_at": word.offset, "released_by": who, "released_ms": word.header.written_ms}
            found = [
                one.model_copy(update=end) if one.hold == word.body.hold and one.released_at is None else one
                for one in found
            ]
    number = evidence.request.number
    return [one for one in found if one.released_at is None or one.released_at > number]


def _reaches(evidence: Evidence, hold: HoldSet) -> bool:
    """Whether it stands on a domain in scope, or on the tenant whose deletion was requested. Nobody else's is told."""
    owners, scope = evidence.registry.domains, evidence.request.scope
    if isinstance(scope, TenantScope) and hold.tenant == scope.tenant:
        return True
    return any(hold.covers(domain, owners.get(domain)) for domain in evidence.scope.domains)
