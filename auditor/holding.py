"""Conditions on what each holder holds: P3, P4, P5 and P7, each from evidence to reasons. Pure."""

from __future__ import annotations

from auditor.case import AckRead, Age, Base, Late, StreamCase
from auditor.condition import SHOWN_IDS, SHOWN_RECORDS, Findings, base_seq, foreign_durable, last_acks
from auditor.evidence import Evidence
from auditor.finding import Counterexample
from auditor.fold import Divergence
from auditor.lineage import Covered
from auditor.owing import Owing
from events.ids import Inventory, StreamKey, VerdictReason


def p3_contiguous(evidence: Evidence, one: Owing, found: Findings) -> None:
    """Every record from each holder's base to the last ack is there, and the chain holds."""
    case = one.case
    if case is None:
        return
    for reason, note in case.disputes:
        found.add("P3", reason, one.subject, note)
    for fault in case.fold.faults:
        if fault.kind == "chain_break":
            found.add("P3", VerdictReason.CHAIN_BREAK, one.subject, f"record {fault.seq}: {fault.detail}")
        elif fault.kind == "equivocation":
            found.add("P3", VerdictReason.EQUIVOCATION, one.subject, f"record {fault.seq}: {fault.detail}")
    epochs = [evidence.streams[e.stream] for e in one.earlier if e.stream in evidence.streams]
    unread = sum(told.fold.unread for told in (*epochs, case))
    if unread:
        things = "1 thing" if unread == 1 else f"{unread} things"
        found.assumptions.append(
            f"{one.subject}: {things} that its engine told its hook could not read or place, none of it a copy in scope"
        )
    opened = case.fold.opened
    if opened is not None and opened.engine_life != one.epoch.body.engine_life:
        detail = "record 0 names another engine life than the registration"
        found.add("P3", VerdictReason.CHAIN_BREAK, one.subject, detail)
    if any(earlier.body.partition != one.epoch.body.partition for earlier in one.earlier):
        detail = "earlier epochs of this engine life lie in other partitions: what came first can't be told"
        found.add("P3", VerdictReason.CHAIN_BREAK, one.subject, detail)
    for _, ack, _ in last_acks(evidence, one):
        if case.fold.overtaken > ack.seq:
            detail = f"record {case.fold.overtaken} came behind one of a higher number, and wasn't looked at"
            found.add("P3", VerdictReason.SEQ_GAP, one.subject, detail, waits=one.live)
        if not ack.bases:
            nothing = Base(None, False, Inventory.PARTIAL, None, 0, 0)
            _no_base(evidence, one, case, "(no holder declared)", nothing, ack, found)
        for name, view in case.fold.holders.items():
            later = Base(None, False, view.inventory, view.durable_id, 0, 0)
            known = name in ack.bases and view.groups <= ack.bases[name].groups
            if ack.bases and not known and not foreign_durable(evidence, one, later):
                detail = f"it was declared behind the ack in record {ack.seq}, which doesn't speak of it"
                subject = f"{one.subject} {name}"
                found.add("P3", VerdictReason.INVENTORY_INCOMPLETE, subject, detail, waits=one.live)
        for name, base in ack.bases.items():
            if base_seq(evidence, one, base) is None and not foreign_durable(evidence, one, base):
                _no_base(evidence, one, case, name, base, ack, found)
        for name in _forgotten(evidence, one, ack):
            detail = "an earlier epoch of this engine life reported it; at the ack nobody does"
            subject = f"{one.subject} {name}"
            found.add("P3", VerdictReason.INVENTORY_INCOMPLETE, subject, detail, waits=one.live)


def _forgotten(evidence: Evidence, one: Owing, ack: AckRead) -> list[str]:
    """Volatile holders, or groups of them, that an earlier epoch of the engine life declared and the newest has not:
    the memory is still there."""
    cases = [evidence.streams[e.stream] for e in one.earlier if e.stream in evidence.streams]
    return sorted(
        {
            name
            for case in cases
            for name, holder in case.fold.holders.items()
            if holder.durable_id is None
            and (name not in ack.bases or not holder.groups <= ack.bases[name].groups)
        }
    )


def _no_base(
    evidence: Evidence, one: Owing, case: StreamCase, name: str, base: Base, ack: AckRead, found: Findings
) -> None:
    subject = f"{one.subject} {name}"
    fault = next((f for f in reversed(case.fold.faults) if f.seq <= ack.seq), None)
    if fault is not None and fault.kind in ("unreadable", "illegal"):
        detail = f"record {fault.seq}: {fault.detail}"
        found.add("P3", VerdictReason.UNPARSEABLE_RECORD, subject, detail, waits=one.live)
    elif fault is not None and fault.kind == "gap":
        first = case.fold.seen.first or 0
        cut = first > 0 and evidence.partition_starts.get(one.epoch.body.partition, 0) > 0
        reason = VerdictReason.RETENTION_TRUNCATED if cut else VerdictReason.SEQ_GAP
        found.add("P3", reason, subject, f"record {fault.seq}: {fault.detail}", waits=one.live)
    elif fault is None or base.inventory is Inventory.PARTIAL:
        detail = f"its inventory is {base.inventory.value} at the ack in record {ack.seq}, without a base"
        found.add("P3", VerdictReason.INVENTORY_INCOMPLETE, subject, detail, waits=one.live)


def p4_nothing_old(evidence: Evidence, one: Owing, found: Findings) -> None:
    """At the last ack nothing old is held, nothing is without a root, nothing unassigned."""
    for domain, ack, case in last_acks(evidence, one):
        unknown, undecided = 0, 0
        old: dict[str, list[bytes]] = {}
        for resident in ack.residents:
            base = ack.bases.get(resident.place.holder)
            if base is not None and foreign_durable(evidence, one, base):
                continue
            covered = evidence.scope.covers(domain, resident.block, resident.profile)
            if covered is Covered.NO:
                continue
            if covered is Covered.UNDECIDED:
                undecided += 1
            elif resident.age is Age.UNKNOWN:
                unknown += 1
            else:
                old.setdefault(resident.place.holder, []).append(resident.block)
        if unknown:
            detail = f"{unknown} copies of unknown admission are held at the ack in record {ack.seq}"
            found.add("P4", VerdictReason.UNKNOWN_LINEAGE, one.subject, detail)
        if undecided:
            detail = (
                f"of {undecided} old copies in domain {domain} it can't be told whether they are in scope"
            )
            found.add("P4", VerdictReason.SCOPE_UNDECIDABLE, one.subject, detail, cure=_decide(evidence))
        for holder, blocks in old.items():
            _still_held(evidence, one, case, ack, holder, blocks, found)
        orphans = ack.standing.orphans + sum(base.orphans for base in ack.bases.values())
        unassigned = ack.standing.unassigned + sum(base.unassigned for base in ack.bases.values())
        if orphans or unassigned:
            detail = f"{orphans} orphans and {unassigned} unassigned copies may be in scope"
            found.add("P4", VerdictReason.INVENTORY_INCOMPLETE, one.subject, detail, waits=one.live)


def _decide(evidence: Evidence) -> str:
    """Leaves that were bound too late are named by another request; for a lost ancestor nothing precise helps."""
    return (
        "request the subject's deletion again: more leaves are bound by now" if evidence.scope.unnamed else ""
    )


def _still_held(
    evidence: Evidence,
    one: Owing,
    case: StreamCase,
    ack: AckRead,
    holder: str,
    blocks: list[bytes],
    found: Findings,
) -> None:
    """Stored and never removed: that refutes only where the fold is exact and the stream undisputed."""
    base = ack.bases.get(holder)
    since = base_seq(evidence, one, base) if base is not None else None
    exact = since is not None and not case.fold.faults and not case.disputes and not case.control_disputes
    diverged = any(divergence.place.holder == holder for divergence in case.fold.divergences)
    detail = f"{len(blocks)} old copies are held at the ack in record {ack.seq}"
    if not exact or diverged:
        found.add("P4", VerdictReason.INVENTORY_DIVERGENCE, f"{one.subject} {holder}", detail)
        return
    found.counterexamples.append(
        Counterexample(
            what=f"{detail}, which says that none is left",
            worker=one.epoch.body.worker,
            rank=one.epoch.body.rank,
            epoch=one.epoch.body.epoch,
            seq=ack.seq,
            partition=one.epoch.body.partition,
            offset=ack.offset,
            holder=holder,
            event="ack",
            admitted_after=None,
            count=len(blocks),
            ids=tuple(block.hex() for block in blocks[:SHOWN_IDS]),
        )
    )


def p5_nothing_returned(
    evidence: Evidence, owing: list[Owing], dead: frozenset[StreamKey], nonce: int | None, found: Findings
) -> int:
    """Nothing old landed after a discharging ack; returns how many younger copies did (RECREATED). Only a record that
    a signature speaks for refutes. Without one, what an earlier epoch told is passed over once the newest has acked
    behind it: what was there is in that one's own inventory."""
    newest = {one.epoch.life: one for one in owing}
    live = {one.epoch.stream for one in owing if one.live}
    recreated = sum(case.recreated for case in evidence.streams.values())
    for case in sorted(evidence.streams.values(), key=lambda one: one.epoch.epoch_no):
        for late in case.late:
            if late.outlived and (nonce is None or late.installed < nonce):
                continue
            vouched = case.vouches(late.seq)
            if not vouched and _answered_since(newest.get(case.epoch.life), late):
                continue
            yes, maybe = _count(evidence, late)
            if late.age is Age.FRESH:
                recreated += yes
            elif late.age is Age.OLD:
                if yes and late.event != "transfer_started":
                    if vouched:
                        found.counterexamples.append(_returned(late, yes))
                    elif late.stream not in dead:
                        _unvouched(case, late, yes, found, live=late.stream in live)
                if maybe and late.stream not in dead:
                    detail = f"of {maybe} old copies that landed in record {late.seq} it can't be told"
                    reason = VerdictReason.SCOPE_UNDECIDABLE
                    found.add("P5", reason, str(late.stream), detail, cure=_decide(evidence))
            elif (yes or maybe) and late.stream not in dead:
                detail = f"{yes + maybe} copies landed in record {late.seq}, admission unknown"
                found.add("P5", VerdictReason.UNKNOWN_LINEAGE, str(late.stream), detail)
    del found.counterexamples[SHOWN_RECORDS:]
    return recreated


def _answered_since(newest: Owing | None, late: Late) -> bool:
    """Whether a newer epoch of the life has acked when it knew of later orders than the one that told this."""
    if newest is None or newest.case is None or newest.epoch.stream == late.stream:
        return False
    ack = newest.case.acks.get(late.domain)
    return ack is not None and late.installed < ack.installed


def _unvouched(case: StreamCase, late: Late, count: int, found: Findings, *, live: bool) -> None:
    subject = str(late.stream)
    if live and not case.fold.sticky and late.seq >= case.chained_from:
        detail = f"{count} old copies landed in record {late.seq}, and no signature covers it yet"
        found.add("P5", VerdictReason.FRONTIER_BEHIND, subject, detail, waits=True)
    else:
        detail = f"{count} old copies landed in record {late.seq}, which no signature covers"
        found.add("P5", VerdictReason.SIGNATURE_INVALID, subject, detail)


def _count(evidence: Evidence, late: Late) -> tuple[int, int]:
    """How many of the landed ids are in scope, and of how many that can't be told."""
    answers = [evidence.scope.covers(late.domain, block, late.profile) for block in late.ids]
    return answers.count(Covered.YES), answers.count(Covered.UNDECIDED)


def _returned(late: Late, count: int) -> Counterexample:
    return Counterexample(
        what=f"{count} copies from before the request came back after the ack",
        worker=late.stream.worker,
        rank=late.stream.rank,
        epoch=late.stream.epoch,
        seq=late.seq,
        partition=late.partition,
        offset=late.offset,
        holder=late.place.holder,
        event=late.event,
        admitted_after=late.provenance,
        count=count,
        ids=tuple(block.hex() for block in late.ids[:SHOWN_IDS]),
    )


def p7_statements(evidence: Evidence, one: Owing, found: Findings) -> None:
    """What the hook states about its inventory is what the auditor's own fold holds."""
    case = one.case
    if case is None:
        return
    epochs = [epoch.stream for epoch in (*one.earlier, one.epoch)]
    for told in [evidence.streams[stream] for stream in epochs if stream in evidence.streams]:
        for divergence in told.fold.divergences:
            if not _emptied_since(case, told, divergence):
                stated, held = divergence.stated[0], divergence.held[0]
                detail = f"record {divergence.seq} states {stated} copies, the log gives {held}"
                if stated == held:
                    detail = f"record {divergence.seq} states another checksum than the log gives"
                subject = f"{told.fold.stream} {divergence.place.holder}"
                found.add("P7", VerdictReason.INVENTORY_DIVERGENCE, subject, detail)
    unstated = sorted({place.holder for place in case.appeared if place not in case.fold.stated})
    if unstated:
        found.assumptions.append(f"{one.subject}: no statement yet about {', '.join(unstated)}")
    if case.fold.stated_derived:
        found.assumptions.append(
            f"{one.subject}: its statements are derived from its records, not from the pool"
        )


def _emptied_since(case: StreamCase, told: StreamCase, divergence: Divergence) -> bool:
    """Whether the whole holder was cleared behind a divergence: only that makes it history. A snapshot may
    repeat what the hook wrongly believes."""
    holder = case.fold.holders.get(divergence.place.holder)
    if holder is None or holder.cleared_seq is None:
        return False
    return case is not told or holder.cleared_seq > divergence.seq
