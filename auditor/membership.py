"""P2: who is in the fleet, and whether everybody in it has acked. From evidence to reasons. Pure."""

from __future__ import annotations

from auditor.case import StreamCase
from auditor.condition import Findings, destroyed_stores
from auditor.evidence import Evidence
from auditor.owing import Owing, owed_domains
from auditor.registry import ControlFold
from events.ids import VerdictReason
from events.model.control import InventoryMember, SubjectScope, TenantScope

STATE = "state the fleet's inventory again: kvledger attest inventory"
ARCHIVED = "audit with its archive: kvledger audit run --archive URL; if it has only begun, wait for its ack"
BOUND = "audit with its archive: kvledger audit run --archive URL; or delete the subject's whole domain"
REGISTER = (
    "have this worker register; if it never ran, or has ended, say so: kvledger attest inventory FILE --gone WORKER "
    "--evidence TEXT"
)


def p2_membership(evidence: Evidence, owing: list[Owing], found: Findings) -> None:
    """Every registered holder has acked, and nobody writes who isn't registered."""
    registry, scope = evidence.registry, evidence.request.scope
    p2_inventory(evidence, owing, found)
    for stream, offset in sorted(evidence.strangers.items()):
        found.add(
            "P2", VerdictReason.MEMBERSHIP_INCOMPLETE, str(stream), f"not registered, writes at {offset}"
        )
    request = f"request {evidence.request.number}"
    if not evidence.scope.domains:
        detail = "no domain of this scope is known"
        found.add("P2", VerdictReason.SCOPE_UNDECIDABLE, request, detail)
    if isinstance(scope, SubjectScope):
        p2_subject(evidence, scope, request, found)
    for domain in sorted(evidence.scope.domains - set(evidence.scope.alias_keys)):
        found.add("P2", VerdictReason.SCOPE_UNDECIDABLE, domain, "its alias key is not in the key ring")
    if isinstance(scope, TenantScope):
        for domain, tenant in sorted(registry.admissions):
            if tenant == scope.tenant and registry.domains.get(domain) != tenant:
                detail = f"{tenant} is admitted to it; whose blocks it holds can't be told"
                found.add("P2", VerdictReason.SHARED_DOMAIN, domain, detail)
    for one in owing:
        for domain in owed_domains(evidence):
            _acked(evidence, one, domain, found)
    p2_aliases(evidence, owing, found)


def p2_aliases(evidence: Evidence, owing: list[Owing], found: Findings) -> None:
    """Nobody's name is unknown of whom something may still be held: an alias that no key of the ring explains."""
    newest = {one.epoch.stream for one in owing}
    owes, destroyed = {one.epoch.life for one in owing}, destroyed_stores(evidence)
    for case in sorted(evidence.streams.values(), key=lambda one: one.epoch.epoch_no):
        names = case.strange_aliases
        if case.epoch.stream not in newest:
            names = names & _still_somewhere(case, destroyed, moving=case.epoch.life in owes)
        for name in sorted(names):
            detail = f"alias {name.hex()} belongs to a domain whose key is not in the ring"
            found.add("P2", VerdictReason.SCOPE_UNDECIDABLE, str(case.epoch.stream), detail)


def _still_somewhere(case: StreamCase, destroyed: frozenset[str], *, moving: bool) -> set[bytes]:
    """Aliases under which a stream has left something in a durable store or, if `moving` asks for that too, on its
    way."""
    holders = case.fold.holders
    lasting = {name for name, one in holders.items() if one.durable_id and one.durable_id not in destroyed}
    left = {
        place.alias for place, table in case.fold.tables.places.items() if table and place.holder in lasting
    }
    return left | {place.alias for _, place in case.fold.transfers if moving}


def p2_subject(evidence: Evidence, scope: SubjectScope, request: str, found: Findings) -> None:
    """Every leaf that is bound to the subject was looked at."""
    if scope.pseudonym is None:
        return
    known = evidence.scope
    if known.bound is None:
        detail, cure = "kv.subjects was not read", "audit where kv.subjects can be read"
        found.add("P2", VerdictReason.NOT_EVALUATED, request, detail, cure=cure)
        return
    if scope.leaves is None and known.bound:
        detail = f"{len(known.bound)} leaves are bound to the subject; the request names none"
        cure = "request the subject's deletion again: more leaves are bound by now"
        found.add("P2", VerdictReason.SCOPE_UNDECIDABLE, request, detail, cure=cure)
    if known.cut:
        detail = f"kv.subjects begins at {known.cut}; what was bound to the subject before that is not known"
        found.add("P2", VerdictReason.RETENTION_TRUNCATED, request, detail, cure=BOUND)
    if known.missing:
        detail = (
            f"{known.missing} offsets of kv.subjects hold no record that can be read; "
            "what was bound there is not known"
        )
        found.add("P2", VerdictReason.TOPIC_COMPACTED, request, detail, cure=BOUND)


def p2_inventory(evidence: Evidence, owing: list[Owing], found: Findings) -> None:
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
    owes = {one.epoch.life for one in owing}
    for member in behind[newest].members:
        if _ended_before(registry, member, newest, owes):
            name = member.worker if member.pod is None else f"{member.worker} in pod {member.pod}"
            detail = (
                f"named by kv.control/{newest}, behind the end of every engine life that was registered of it"
            )
            found.add(
                "P2",
                VerdictReason.MEMBERSHIP_INCOMPLETE,
                name,
                detail,
                waits=True,
                cure=f"{REGISTER}; or {STATE}",
            )
    members, source = len(behind[newest].members), behind[newest].source
    found.assumptions.append(f"membership: inventory of {members} by {source} (kv.control/{newest})")


def _ended_before(
    registry: ControlFold, member: InventoryMember, named_at: int, owes: set[tuple[str, int, str]]
) -> bool:
    """Whether the member was seen although the end of all that ever registered as it had been attested before: what
    runs there now has not registered."""
    bodies = [epoch for epoch in registry.epochs.values() if epoch.body.worker == member.worker]
    lives = [epoch for epoch in bodies if member.pod in (None, epoch.body.pod)]
    ends = [registry.exits.get((epoch.body.worker, epoch.body.engine_life), named_at) for epoch in lives]
    return bool(lives) and not any(one.life in owes for one in lives) and all(end < named_at for end in ends)


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
    if one.live and ack is None and _beginning_lost(evidence, one):
        detail = (
            f"the log no longer holds the beginning of its partition, nor an ack for domain {domain}{hold}"
        )
        found.add(
            "P2", VerdictReason.RETENTION_TRUNCATED, one.subject, detail, waits=True, cure=cure or ARCHIVED
        )
    elif one.live:
        said = "no ack yet for" if ack is None else f"{ack.standing.old_left} old copies are left in"
        detail = f"{said} domain {domain}{hold}"
        found.add("P2", VerdictReason.FRONTIER_BEHIND, one.subject, detail, waits=True, cure=cure)
    else:
        reason = {
            "fenced (timeout)": VerdictReason.DEATH_BY_TIMEOUT_ONLY,
            "superseded": VerdictReason.EPOCH_UNFENCED,
        }.get(one.absent, VerdictReason.MISSING_ACK)
        found.add("P6", reason, one.subject, f"{one.absent}, and no ack for domain {domain}")


def _beginning_lost(evidence: Evidence, one: Owing) -> bool:
    """Whether its partition was cut at the start, and with it the stream's beginning or all that it ever said."""
    first = one.case.fold.seen.first if one.case is not None else None
    return evidence.partition_starts.get(one.epoch.body.partition, 0) > 0 and first != 0
