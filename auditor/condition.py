"""Conditions on the log and on who owes: P1, P2, P6 and P9, each from evidence to reasons. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from auditor.case import AckRead, Base, StreamCase
from auditor.evidence import Evidence
from auditor.finding import CURES, Condition, Counterexample, Reason
from auditor.owing import Owing, owed_domains
from auditor.registry import EpochRegistered
from auditor.shared_store import ToldThere, told_by_others
from auditor.shredding import shredded
from events.ids import Inventory, VerdictReason

SHOWN_IDS = 8
SHOWN_RECORDS = 20
LISTED_AGAIN_CURE = (
    "let the store's owner list it again behind the closing nonce and ack, or record its destruction"
)


@dataclass(slots=True)
class Findings:
    """Collects what the conditions find."""

    reasons: list[Reason] = field(default_factory=list)
    counterexamples: list[Counterexample] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    _known: set[Reason] = field(default_factory=set)

    def add(
        self,
        condition: Condition,
        reason: VerdictReason,
        subject: str,
        detail: str,
        *,
        waits: bool = False,
        cure: str = "",
    ) -> None:
        found = Reason(
            reason=reason,
            condition=condition,
            subject=subject,
            detail=detail,
            cure=cure or CURES[reason],
            waits=waits,
        )
        if found not in self._known:
            self._known.add(found)
            self.reasons.append(found)


def last_acks(evidence: Evidence, one: Owing) -> Iterator[tuple[str, AckRead, StreamCase]]:
    if one.case is not None:
        for domain in owed_domains(evidence):
            ack = one.case.acks.get(domain)
            if ack is not None and ack.discharging:
                yield domain, ack, one.case


def base_seq(evidence: Evidence, one: Owing, base: Base) -> int | None:
    """From which record a holder's content is exactly known. An empty opening is a base only at a birth:
    not if an earlier epoch reported this engine life, or an earlier stream declared the same durable store."""
    if not base.from_opened:
        return base.seq
    if base.durable_id is None and any(evidence.reported(earlier) for earlier in one.earlier):
        return None
    if base.durable_id is not None and _declared_before(evidence, one.epoch, base.durable_id):
        return None
    return base.seq


def _declared_before(evidence: Evidence, epoch: EpochRegistered, durable_id: str) -> bool:
    """Whether an earlier stream did, or may have in what retention took."""
    for earlier in evidence.registry.epochs.values():
        if earlier.epoch_no >= epoch.epoch_no:
            continue
        case = evidence.streams.get(earlier.stream)
        if (case is None or case.fold.opened is None) and evidence.reported(earlier):
            return True
        if case is not None and any(h.durable_id == durable_id for h in case.fold.holders.values()):
            return True
    return False


def foreign_durable(evidence: Evidence, one: Owing, base: Base) -> bool:
    """A durable holder that another worker owns is that one's to answer for; one that is destroyed, nobody's."""
    if base.durable_id is None:
        return False
    if base.durable_id in one.destroyed:
        return True
    return evidence.registry.stores.owners.get(base.durable_id) != one.epoch.body.worker


def destroyed_stores(evidence: Evidence) -> frozenset[str]:
    """Durable stores whose destruction is attested and that nobody has used since: not enrolled again, not declared
    by a stream that was registered behind it, and with no copies in it told of by a writer who knew of it."""
    found = {
        name: at
        for name, at in evidence.registry.stores.destroyed.items()
        if evidence.registry.stores.enrolled.get(name, -1) < at
    }
    for case in evidence.streams.values() if found else ():
        for holder in case.fold.holders.values():
            at = found.get(holder.durable_id or "")
            used = max(case.epoch.epoch_no, case.told_under.get(holder.name, -1))
            if at is not None and used >= at:
                del found[holder.durable_id or ""]
    return frozenset(found)


def p1_control(evidence: Evidence, owing: list[Owing], found: Findings) -> None:
    """kv.control is whole, signed by role, and every stream has seen the same one."""
    registry = evidence.registry
    if registry.start not in (None, 0):
        detail = f"the first readable record is {registry.start}"
        found.add(
            "P1",
            VerdictReason.RETENTION_TRUNCATED,
            "kv.control",
            detail,
            cure=CURES[VerdictReason.TOPIC_COMPACTED],
        )
    for first, last in registry.holes:
        found.add("P1", VerdictReason.TOPIC_COMPACTED, "kv.control", f"records {first} to {last} are missing")
    if not registry.log:
        found.add("P1", VerdictReason.SIGNATURE_INVALID, "kv.control", "no valid genesis record")
    for ignored in [one for one in registry.ignored if one.broken][:SHOWN_RECORDS]:
        found.add("P1", VerdictReason.SIGNATURE_INVALID, f"kv.control/{ignored.offset}", ignored.why)
    for ignored in [one for one in registry.ignored if one.unread][:SHOWN_RECORDS]:
        found.add("P1", VerdictReason.UNPARSEABLE_RECORD, f"kv.control/{ignored.offset}", ignored.why)
    for one in owing:
        if one.case is not None and one.case.control_disputes:
            seq = one.case.control_disputes[0]
            detail = f"record {seq} names another kv.control than the one read"
            found.add("P1", VerdictReason.CHAIN_BREAK, one.subject, detail)


def p6_durable(evidence: Evidence, owing: list[Owing], nonce: int | None, found: Findings) -> None:
    """Every durable store has an owner who answered for its whole content, or is destroyed, or its keys are."""
    registry = evidence.registry
    declared = {
        holder.durable_id
        for case in evidence.streams.values()
        for holder in case.fold.holders.values()
        if holder.durable_id is not None
    }
    for durable_id in sorted((declared | set(registry.stores.owners)) - destroyed_stores(evidence)):
        owner = registry.stores.owners.get(durable_id)
        theirs = [one for one in owing if one.epoch.body.worker == owner]
        answers = [
            one
            for one in theirs
            if all(_covers_store(evidence, one, domain, durable_id) for domain in owed_domains(evidence))
        ]
        others = told_by_others(evidence, owing, nonce, durable_id) if answers else []
        if any(_lists_behind(one, others, durable_id) for one in answers):
            continue
        keys = shredded(evidence, durable_id)
        if keys.rings:
            found.assumptions.append(keys.assumption(durable_id))
            continue
        waits = any(one.live for one in theirs)
        detail = f"owner {owner} has not acked on its listing" if owner else "nobody is enrolled as its owner"
        if answers:
            who = str(min(one.stream for one in others))
            detail = f"{who} told of old copies in it that its owner {owner} may have listed before"
        detail = f"{detail}; {keys.why}" if keys.why else detail
        reason = VerdictReason.DURABLE_TIER_UNCOVERED
        cure = LISTED_AGAIN_CURE if answers else CURES[reason]
        cure = f"{cure}; or {keys.cure}" if keys.cure else cure
        found.add("P6", reason, durable_id, detail, waits=waits, cure=cure)


def _lists_behind(one: Owing, others: list[ToldThere], durable_id: str) -> bool:
    """Whether an owner's base is younger than all that others have put there."""
    foreign = [told for told in others if told.concerns(one)]
    acks = one.case.acks if one.case is not None else {}
    return all(
        base.installed >= told.behind
        for told in foreign
        for base in acks[told.domain].bases.values()
        if base.durable_id == durable_id
    )


def _covers_store(evidence: Evidence, one: Owing, domain: str, durable_id: str) -> bool:
    ack = one.case.acks.get(domain) if one.case is not None else None
    if ack is None or not ack.discharging:
        return False
    bases = [base for base in ack.bases.values() if base.durable_id == durable_id]
    return bool(bases) and all(base_seq(evidence, one, base) is not None for base in bases)


def closing_nonce(evidence: Evidence, owing: list[Owing]) -> int | None:
    """The first nonce of this request that was written after every owing engine life had discharged it, and which
    none has taken that back behind."""
    number = evidence.request.number
    for offset in sorted(nonce for nonce, request in evidence.registry.nonces.items() if request == number):
        before = [
            _discharged_before(evidence, one, domain, offset)
            for one in owing
            for domain in owed_domains(evidence)
        ]
        if all(before):
            return offset
    return None


def _discharged_before(evidence: Evidence, one: Owing, domain: str, nonce: int) -> bool:
    epochs = (*one.earlier, one.epoch)
    if epochs[0].epoch_no > nonce and _born_empty(evidence, epochs):
        return True
    for epoch in reversed(epochs):
        case = evidence.streams.get(epoch.stream)
        ack = case.stands_since.get(domain) if case is not None else None
        if ack is not None and ack.installed < nonce:
            return not _asked_too_early(evidence, epochs, domain, nonce)
        if case is not None and domain in case.taken_back:
            return False  # what was acked before that no longer stands
    return False


def _asked_too_early(
    evidence: Evidence, epochs: tuple[EpochRegistered, ...], domain: str, nonce: int
) -> bool:
    """Whether a nonce may have been written while a discharge stood that was taken back since: whoever acks again may
    lag behind it. Each such discharge may have had one."""
    count, first, later = 0, nonce, False
    for epoch in reversed(epochs):
        case = evidence.streams.get(epoch.stream)
        if case is None:
            continue
        more, since = case.withdrawn.get(domain, (0, nonce))
        stood = case.stands_since.get(domain)
        if later and stood is not None:
            more, since = more + 1, min(since, stood.installed)
        count, first = count + more, min(first, since)
        later = later or domain in case.taken_back
    number = evidence.request.number
    before = [at for at, of in evidence.registry.nonces.items() if of == number and first < at < nonce]
    return len(before) < count


def _born_empty(evidence: Evidence, epochs: tuple[EpochRegistered, ...]) -> bool:
    """Whether a life held nothing when it was first reported: of what was there before it could have sent something
    on, before it was enrolled."""
    first = next((epoch for epoch in epochs if evidence.reported(epoch)), None)
    if first is None:
        return True  # it hasn't told anything, and owes its ack
    case = evidence.streams.get(first.stream)
    if case is None or case.fold.seen.first != 0 or case.fold.opened is None:
        return False
    return all(holder.inventory is Inventory.EMPTY for holder in case.fold.opened.holders)


def answers_nonce(one: Owing, ack: AckRead, nonce: int) -> bool:
    """Whether an ack was written after the nonce was installed, as its answer or by an epoch born later."""
    if ack.nonce is not None and ack.nonce >= nonce:
        return ack.installed >= nonce
    return one.epoch.epoch_no > nonce


def p9_nonce(evidence: Evidence, owing: list[Owing], nonce: int | None, found: Findings) -> None:
    """Every holder that isn't proven gone has answered the closing nonce."""
    number = evidence.request.number
    if nonce is None:
        ready = all_discharged(evidence, owing)
        reason = VerdictReason.FRONTIER_BEHIND if ready else VerdictReason.NOT_EVALUATED
        detail = "no nonce was written after the last ack" if ready else "not every holder has acked yet"
        if owing:
            found.add("P9", reason, f"request {number}", detail, waits=ready)
        return
    for one in owing:
        for domain in owed_domains(evidence):
            ack = one.case.acks.get(domain) if one.case is not None else None
            if ack is None or not answers_nonce(one, ack, nonce):
                detail = f"nonce {nonce} is not answered for domain {domain}"
                cure = ""
                if not one.live:
                    detail, cure = f"{detail} ({one.absent})", CURES[VerdictReason.MISSING_ACK]
                reason = VerdictReason.FRONTIER_BEHIND
                found.add("P9", reason, one.subject, detail, waits=one.live, cure=cure)


def all_discharged(evidence: Evidence, owing: list[Owing]) -> bool:
    """Whether every owing holder's newest word on every domain in scope is a discharging ack."""
    return all(
        one.case is not None and domain in one.case.acks and one.case.acks[domain].discharging
        for one in owing
        for domain in owed_domains(evidence)
    )
