"""Conditions on the log and on who owes: P1, P2, P6 and P9, each from evidence to reasons. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from auditor.case import AckRead, Base, StreamCase
from auditor.evidence import Evidence
from auditor.finding import CURES, Condition, Counterexample, Reason
from auditor.registry import ControlFold, EpochRegistered
from auditor.shredding import shredded
from events.ids import VerdictReason
from events.model.control import InventoryMember, SubjectScope, TenantScope

SHOWN_IDS = 8
SHOWN_RECORDS = 20
STATE = "state the fleet's inventory again: kvledger attest inventory"
REGISTER = (
    "have this worker register; if it never ran, or has ended, say so: kvledger attest inventory FILE --gone WORKER "
    "--evidence TEXT"
)


@dataclass(frozen=True, slots=True)
class Owing:
    """One engine life that owes an ack, judged by its newest epoch; `absent` says why no word of it can be
    expected any more ("" while it can). `destroyed` are durable stores that nobody answers for any more."""

    epoch: EpochRegistered
    earlier: tuple[EpochRegistered, ...]
    case: StreamCase | None
    absent: str
    destroyed: frozenset[str] = frozenset()

    @property
    def subject(self) -> str:
        return str(self.epoch.stream)

    @property
    def live(self) -> bool:
        return not self.absent


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


def owed_domains(evidence: Evidence) -> list[str]:
    return sorted(evidence.scope_domains & set(evidence.alias_keys))


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
    reported = any(earlier.stream in evidence.streams for earlier in one.earlier)
    if reported and base.durable_id is None:
        return None
    if base.durable_id is not None and _declared_before(evidence, one.epoch, base.durable_id):
        return None
    return base.seq


def _declared_before(evidence: Evidence, epoch: EpochRegistered, durable_id: str) -> bool:
    return any(
        case.epoch.epoch_no < epoch.epoch_no
        and any(holder.durable_id == durable_id for holder in case.fold.holders.values())
        for case in evidence.streams.values()
    )


def foreign_durable(evidence: Evidence, one: Owing, base: Base) -> bool:
    """A durable holder that another worker owns is that one's to answer for; one that is destroyed, nobody's."""
    if base.durable_id is None:
        return False
    if base.durable_id in one.destroyed:
        return True
    return evidence.registry.owners.get(base.durable_id) != one.epoch.body.worker


def destroyed_stores(evidence: Evidence) -> frozenset[str]:
    """Durable stores whose destruction is attested and that nobody has used since: not enrolled again, not declared
    by a stream that was registered behind it, and with no copies in it told of by a writer who knew of it."""
    found = {
        name: at
        for name, at in evidence.registry.destroyed.items()
        if evidence.registry.enrolled.get(name, -1) < at
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


def p2_membership(evidence: Evidence, owing: list[Owing], found: Findings) -> None:
    """Every registered holder has acked, and nobody writes who isn't registered."""
    registry, scope = evidence.registry, evidence.request.scope
    p2_inventory(evidence, found)
    for stream, offset in sorted(evidence.strangers.items()):
        found.add(
            "P2", VerdictReason.MEMBERSHIP_INCOMPLETE, str(stream), f"not registered, writes at {offset}"
        )
    request = f"request {evidence.request.number}"
    if not evidence.scope_domains:
        detail = "no domain of this scope is known"
        found.add("P2", VerdictReason.SCOPE_UNDECIDABLE, request, detail)
    if isinstance(scope, SubjectScope):
        p2_subject(evidence, scope, request, found)
    for domain in sorted(evidence.scope_domains - set(evidence.alias_keys)):
        found.add("P2", VerdictReason.SCOPE_UNDECIDABLE, domain, "its alias key is not in the key ring")
    if isinstance(scope, TenantScope):
        for domain, tenant in sorted(registry.admissions):
            if tenant == scope.tenant and registry.domains.get(domain) != tenant:
                detail = f"{tenant} is admitted to it; whose blocks it holds can't be told"
                found.add("P2", VerdictReason.SHARED_DOMAIN, domain, detail)
    for one in owing:
        for domain in owed_domains(evidence):
            _acked(evidence, one, domain, found)
        for name in sorted(one.case.strange_aliases if one.case is not None else ()):
            detail = f"alias {name.hex()} belongs to a domain whose key is not in the ring"
            found.add("P2", VerdictReason.SCOPE_UNDECIDABLE, one.subject, detail)


def p2_subject(evidence: Evidence, scope: SubjectScope, request: str, found: Findings) -> None:
    """Every leaf that is bound to the subject was looked at."""
    if scope.pseudonym is None:
        return
    if evidence.bound is None:
        detail, cure = "kv.subjects was not read", "audit where kv.subjects can be read"
        found.add("P2", VerdictReason.NOT_EVALUATED, request, detail, cure=cure)
    elif scope.leaves is None and evidence.bound:
        detail = f"{len(evidence.bound)} leaves are bound to the subject; the request names none"
        cure = "request the subject's deletion again: more leaves are bound by now"
        found.add("P2", VerdictReason.SCOPE_UNDECIDABLE, request, detail, cure=cure)


def p2_inventory(evidence: Evidence, found: Findings) -> None:
    """Whoever an outside inventory names is registered; a log that holds one wants one behind the request."""
    registry, number = evidence.registry, evidence.request.number
    if not registry.inventories:
        found.assumptions.append("membership: self-declared")
        return
    behind = {offset: one for offset, one in registry.inventories.items() if offset > number}
    if not behind:
        detail = "the newest outside inventory was stated before the request"
        found.add(
            "P2", VerdictReason.MEMBERSHIP_INCOMPLETE, f"request {number}", detail, waits=True, cure=STATE
        )
        return
    workers = {epoch.body.worker for epoch in registry.epochs.values()}
    pods = {(epoch.body.worker, epoch.body.pod) for epoch in registry.epochs.values()}
    for offset, stated in sorted(behind.items()):
        for member in stated.members:
            known = member.worker in workers if member.pod is None else (member.worker, member.pod) in pods
            if known:
                continue
            name = member.worker if member.pod is None else f"{member.worker} in pod {member.pod}"
            told = f"named by {stated.source} (kv.control/{offset})"
            gone = _stated_gone(registry, member, offset)
            if gone is not None:
                found.assumptions.append(f"member {name}, {told}, is gone by the word of kv.control/{gone}")
                continue
            detail = f"{told} and not registered"
            found.add("P2", VerdictReason.MEMBERSHIP_INCOMPLETE, name, detail, cure=REGISTER)
    newest = max(behind)
    members, source = len(behind[newest].members), behind[newest].source
    found.assumptions.append(f"membership: inventory of {members} by {source} (kv.control/{newest})")


def _stated_gone(registry: ControlFold, member: InventoryMember, named_at: int) -> int | None:
    """The inventory behind `named_at` that says last that the member is gone."""
    saying = [
        offset
        for offset, stated in registry.inventories.items()
        if offset > named_at
        and any(one.worker == member.worker and one.pod in (None, member.pod) for one in stated.gone or ())
    ]
    return max(saying, default=None)


def _acked(evidence: Evidence, one: Owing, domain: str, found: Findings) -> None:
    ack = one.case.acks.get(domain) if one.case is not None else None
    if ack is not None and ack.discharging:
        return
    refusal = one.case.refusals.get(domain) if one.case is not None else None
    if refusal is not None:
        waits = one.live and refusal.reason in ("blocks_in_use", "engine_error")
        detail = f"{refusal.reason} in domain {domain}"
        found.add("P2", VerdictReason.DELETE_REFUSED, one.subject, detail, waits=waits, cure=refusal.cure)
        return
    held = sorted(
        name
        for name, hold in evidence.registry.holds.items()
        if hold.covers(domain, evidence.registry.domains.get(domain))
    )
    hold = f"; held: legal hold {held[0]} stands on it" if held else ""
    cure = f"it waits until the hold is released: kvledger hold release {held[0]}" if held else ""
    if one.live:
        said = "no ack yet for" if ack is None else f"{ack.standing.old_left} old copies are left in"
        detail = f"{said} domain {domain}{hold}"
        found.add("P2", VerdictReason.FRONTIER_BEHIND, one.subject, detail, waits=True, cure=cure)
    else:
        reason = {
            "fenced (timeout)": VerdictReason.DEATH_BY_TIMEOUT_ONLY,
            "superseded": VerdictReason.EPOCH_UNFENCED,
        }.get(one.absent, VerdictReason.MISSING_ACK)
        found.add("P6", reason, one.subject, f"{one.absent}, and no ack for domain {domain}")


def p6_durable(evidence: Evidence, owing: list[Owing], found: Findings) -> None:
    """Every durable store has an owner who answered for its whole content, or is destroyed, or its keys are."""
    registry = evidence.registry
    declared = {
        holder.durable_id
        for case in evidence.streams.values()
        for holder in case.fold.holders.values()
        if holder.durable_id is not None
    }
    for durable_id in sorted((declared | set(registry.owners)) - destroyed_stores(evidence)):
        owner = registry.owners.get(durable_id)
        theirs = [one for one in owing if one.epoch.body.worker == owner]
        covered = [
            all(_covers_store(evidence, one, domain, durable_id) for domain in owed_domains(evidence))
            for one in theirs
        ]
        if any(covered):
            continue
        keys = shredded(evidence, durable_id)
        if keys.rings:
            found.assumptions.append(keys.assumption(durable_id))
            continue
        waits = any(one.live for one in theirs)
        detail = f"owner {owner} has not acked on its listing" if owner else "nobody is enrolled as its owner"
        detail = f"{detail}; {keys.why}" if keys.why else detail
        reason = VerdictReason.DURABLE_TIER_UNCOVERED
        cure = f"{CURES[reason]}; or {keys.cure}" if keys.cure else ""
        found.add("P6", reason, durable_id, detail, waits=waits, cure=cure)


def _covers_store(evidence: Evidence, one: Owing, domain: str, durable_id: str) -> bool:
    ack = one.case.acks.get(domain) if one.case is not None else None
    if ack is None or not ack.discharging:
        return False
    bases = [base for base in ack.bases.values() if base.durable_id == durable_id]
    return bool(bases) and all(base_seq(evidence, one, base) is not None for base in bases)


def closing_nonce(evidence: Evidence, owing: list[Owing]) -> int | None:
    """The first nonce of this request that was written after every owing engine life had discharged it."""
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
    if epochs[0].epoch_no > nonce:
        return True
    cases = [evidence.streams[e.stream] for e in epochs if e.stream in evidence.streams]
    acks = [case.first_discharge[domain] for case in cases if domain in case.first_discharge]
    return any(ack.installed < nonce for ack in acks)


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
