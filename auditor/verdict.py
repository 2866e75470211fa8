"""`judge`: the verdict on one deletion request from its evidence. Pure; the rule is `docs/audit.md`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from auditor import condition, holding, membership, under_way
from auditor.anchoring import Anchoring
from auditor.case import StreamCase
from auditor.condition import Findings
from auditor.ending import SHOWN_TRANSFERS, died, transfers
from auditor.evidence import Evidence
from auditor.finding import Condition, HolderFound, Standing, Verdict
from auditor.owing import Owing
from auditor.registry import EpochRegistered
from auditor.residency import HolderView
from auditor.shredding import ShreddedStores
from events.chain import MODULUS
from events.ids import CANARY_WORKER, StreamKey, VerdictKind, VerdictReason
from events.model.audit import PartitionPosition

UNANCHORED = Anchoring()
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
ON_ACKS: frozenset[Condition] = frozenset({"P3", "P4", "P5"})
"""Conditions that look at acks, and so at nothing of a life that hasn't acked."""


def judge(
    evidence: Evidence,
    frontier: Sequence[PartitionPosition],
    *,
    anchoring: Anchoring = UNANCHORED,
    without: frozenset[Condition] = frozenset(),
) -> Verdict:
    """The verdict as of `frontier`, which is where the evidence ends; `anchoring` is what binds that log.

    Precedence REFUTED > PENDING > UNPROVABLE > PROVEN. `without` leaves conditions out, as ablation tests
    do: such a verdict says `not_evaluated` for each and is never PROVEN: they ask `examine` and `decide`.
    """
    owing, gone = lives(evidence)
    found, recreated, nonce = examine(evidence, owing, gone, without)
    if "P1" not in without:
        p1_anchored(anchoring, found)
    for skipped in sorted(without):
        found.add(skipped, VerdictReason.NOT_EVALUATED, f"request {evidence.request.number}", "left out")
    if evidence.scope.stale():
        detail = "the domains in scope have changed while the log was read"
        found.add("P2", VerdictReason.NOT_EVALUATED, "kv.control", detail, waits=True)
    found.assumptions += [anchoring.line, "workers tell the truth in what they sign"]
    moved = transfers(evidence)
    answered = condition.all_discharged(evidence, _still_owing(owing, without))
    return Verdict(
        kind=decide(found),
        request=evidence.request.number,
        scope=evidence.request.scope,
        requester=evidence.request.requester,
        domains=tuple(sorted(evidence.scope.domains)),
        frontier=tuple(frontier),
        control_hash=evidence.registry.hash.hex(),
        closing_nonce=nonce,
        conditions={name: _standing(name, found, without, answered=answered) for name in CONDITIONS},
        reasons=tuple(found.reasons),
        counterexamples=tuple(found.counterexamples),
        holders=tuple(_holders(evidence, owing, gone)),
        removed=sum(case.removed for case in evidence.streams.values()),
        cleared=sum(case.endings.in_all(evidence, "cleared") for case in evidence.streams.values()),
        died=died(evidence, gone),
        evicted=sum(case.endings.in_all(evidence, "evicted") for case in evidence.streams.values()),
        rejected=sum(case.endings.in_all(evidence, "rejected") for case in evidence.streams.values()),
        recreated=recreated,
        transfers=tuple(moved[:SHOWN_TRANSFERS]),
        transfers_in_all=len(moved),
        records_ignored=tuple(
            f"kv.control/{one.offset}: {one.why}" for one in evidence.registry.ignored[:50]
        ),
        assumptions=tuple(dict.fromkeys(found.assumptions)),
    )


def examine(
    evidence: Evidence, owing: list[Owing], gone: dict[StreamKey, str], without: frozenset[Condition]
) -> tuple[Findings, int, int | None]:
    """What every condition that isn't left out finds, the number of recreated copies, the closing nonce."""
    found = Findings()
    owing = _still_owing(owing, without)
    if "P1" not in without:
        condition.p1_control(evidence, owing, found)
    if "P2" not in without:
        membership.p2_membership(evidence, owing, found)
    for one in owing:
        if "P3" not in without:
            holding.p3_contiguous(evidence, one, found)
        if "P4" not in without:
            holding.p4_nothing_old(evidence, one, found)
        if "P7" not in without:
            holding.p7_statements(evidence, one, found)
        if "P8" not in without:
            under_way.p8_transfers(evidence, one, found)
    recreated, nonce = 0, condition.closing_nonce(evidence, owing)
    if "P5" not in without:
        recreated = holding.p5_nothing_returned(evidence, owing, frozenset(gone), nonce, found)
    if "P6" not in without:
        condition.p6_durable(evidence, owing, nonce, found)
    if "P9" not in without:
        condition.p9_nonce(evidence, owing, nonce, found)
    return found, recreated, nonce


def p1_anchored(anchoring: Anchoring, found: Findings) -> None:
    """The log is the one that its checkpoint commits to, and as many witnesses as are wanted have seen that."""
    for problem in anchoring.problems[: condition.SHOWN_RECORDS]:
        found.add("P1", VerdictReason.CHECKPOINT_UNVERIFIED, "kv.audit", problem)
    if anchoring.witnessed < anchoring.quorum:
        detail = f"{anchoring.witnessed} of {anchoring.quorum} witnesses that are needed have cosigned"
        found.add("P1", VerdictReason.WITNESS_QUORUM_MISSING, "kv.audit", detail)


def decide(found: Findings) -> VerdictKind:
    if found.counterexamples:
        return VerdictKind.REFUTED
    if any(reason.waits for reason in found.reasons):
        return VerdictKind.PENDING
    return VerdictKind.UNPROVABLE if found.reasons else VerdictKind.PROVEN


def wants_nonce(evidence: Evidence, *, without: frozenset[Condition] = frozenset()) -> bool:
    """Whether all that owe have acked and only the closing nonce is still to be written."""
    owing = _still_owing(lives(evidence)[0], without)
    if not owing or not condition.all_discharged(evidence, owing):
        return False
    return condition.closing_nonce(evidence, owing) is None


def _still_owing(owing: list[Owing], without: frozenset[Condition]) -> list[Owing]:
    """An ablation removes every use of a condition: without P6 silence is death, without P2 only holders
    that were heard of owe anything."""
    if "P6" in without:
        owing = [one for one in owing if one.live]
    if "P2" in without:
        owing = [one for one in owing if one.case is not None and one.case.acks]
    return owing


def lives(evidence: Evidence) -> tuple[list[Owing], dict[StreamKey, str]]:
    """Engine lives that owe an ack, and the streams of those whose memory is proven gone, with the proof."""
    registry = evidence.registry
    destroyed = condition.destroyed_stores(evidence)
    owing: list[Owing] = []
    gone: dict[StreamKey, str] = {}
    every_rank: dict[tuple[str, str], list[EpochRegistered]] = {}
    for epoch in registry.epochs.values():
        every_rank.setdefault((epoch.body.worker, epoch.body.engine_life), []).append(epoch)
    for epochs in registry.lives().values():
        newest = epochs[-1]
        if is_canary(evidence, epochs):
            continue
        proof = _ended(evidence, epochs, every_rank[newest.body.worker, newest.body.engine_life])
        if proof:
            gone.update((epoch.stream, proof) for epoch in epochs)
            continue
        case = evidence.streams.get(newest.stream)
        owing.append(Owing(newest, tuple(epochs[:-1]), case, _absent(evidence, newest, case), destroyed))
    return owing, gone


def is_canary(evidence: Evidence, epochs: Sequence[EpochRegistered]) -> bool:
    """Whether it is a stream of kvledger's own, enrolled under the reserved name, that never named a copy in
    scope. One that did is a holder like any other."""
    if epochs[-1].body.worker != CANARY_WORKER:
        return False
    cases = [evidence.streams[e.stream] for e in epochs if e.stream in evidence.streams]
    return not any(case.appeared or case.fold.declarations for case in cases)


def _ended(
    evidence: Evidence, epochs: Sequence[EpochRegistered], every_rank: Sequence[EpochRegistered]
) -> str:
    """What proves that the life's volatile memory is gone; "" if nothing does. A life that tells of copies behind its
    own end, looks into its pool or was registered again is not over, whoever attested it: the attestation speaks of
    every rank of the engine, and one that goes on denies it for all."""
    body = epochs[-1].body
    attested = evidence.registry.exits.get((body.worker, body.engine_life))
    everywhere = _told_under(evidence, every_rank)
    reborn = attested is not None and any(epoch.epoch_no > attested for epoch in every_rank)
    if attested is not None and not reborn and all(under < attested for under in everywhere.values()):
        return f"exit attested (kv.control/{attested})"
    told_under = _told_under(evidence, epochs)
    last = evidence.streams.get(epochs[-1].stream)
    if last is None or last.ended_seq is None or last.fold.sticky or last.disputes:
        return ""
    told_after = last.told_seq > last.ended_seq or any(
        under >= last.ended_under for stream, under in told_under.items() if stream != last.epoch.stream
    )
    if told_after or any(one.kind == "equivocation" for one in last.fold.faults):
        return ""
    return f"closed with its engine (record {last.ended_seq})"


def _told_under(evidence: Evidence, epochs: Sequence[EpochRegistered]) -> dict[StreamKey, int]:
    """The newest order that was installed when each of the streams told of copies; -1 for none."""
    cases = [evidence.streams[e.stream] for e in epochs if e.stream in evidence.streams]
    return {case.epoch.stream: max(case.told_under.values(), default=-1) for case in cases}


def _absent(evidence: Evidence, epoch: EpochRegistered, case: StreamCase | None) -> str:
    registry = evidence.registry
    fence = registry.fences.get(epoch.stream)
    if fence is not None:
        return f"fenced ({fence})"
    if registry.newest(epoch.body.worker, epoch.body.rank).stream != epoch.stream:
        return "superseded"
    if case is not None and case.closed_seq is not None:
        return "closed by its hook"
    return ""


def _standing(name: Condition, found: Findings, without: frozenset[Condition], *, answered: bool) -> Standing:
    """`answered`: every life that owes has discharged. Until then nothing that asks for acks is met by those that
    there are."""
    if name in without:
        return "not_evaluated"
    refuting = {"P4" if one.event == "ack" else "P5" for one in found.counterexamples}
    if name in refuting:
        return "refuted"
    mine = [reason for reason in found.reasons if reason.condition == name]
    if any(reason.reason is VerdictReason.NOT_EVALUATED for reason in mine):
        return "not_evaluated"
    if any(reason.waits for reason in mine):
        return "waiting"
    if mine or (name == "P2" and not answered):
        return "unmet"
    return "not_evaluated" if name in ON_ACKS and not answered else "met"


def _holders(evidence: Evidence, owing: list[Owing], gone: dict[StreamKey, str]) -> list[HolderFound]:
    found: list[HolderFound] = []
    settled = condition.destroyed_stores(evidence), ShreddedStores(evidence)
    for one in owing:
        found += _holders_of(evidence, one.epoch, one.case, "", *settled)
    for epoch in sorted(evidence.registry.epochs.values(), key=lambda e: e.epoch_no):
        if epoch.stream in gone:
            case = evidence.streams.get(epoch.stream)
            found += _holders_of(evidence, epoch, case, gone[epoch.stream], *settled)
    return found


def _holders_of(
    evidence: Evidence,
    epoch: EpochRegistered,
    case: StreamCase | None,
    proof: str,
    destroyed_stores: frozenset[str],
    shreds: ShreddedStores,
) -> list[HolderFound]:
    acks = [] if case is None else [case.acks[d] for d in sorted(evidence.scope.domains) if d in case.acks]
    last = max(acks, key=lambda ack: ack.seq, default=None)
    complete = bool(acks) and len(acks) == len(evidence.scope.domains) and all(a.discharging for a in acks)
    holders: list[HolderView | None] = list(case.fold.holders.values()) if case is not None else []
    rows: list[HolderFound] = []
    for holder in holders or [None]:
        held = [ack.held.get(holder.name, (0, 0)) for ack in acks] if holder is not None else []
        discharge = proof or ("ack" if complete else "none")
        if holder is not None and holder.durable_id is not None:
            acked = "ack" if complete and not proof else ""
            destroyed = holder.durable_id in destroyed_stores
            discharge = "destroyed" if destroyed else acked or shreds[holder.durable_id].discharge or "none"
        rows.append(
            HolderFound(
                worker=epoch.body.worker,
                rank=epoch.body.rank,
                engine_life=epoch.body.engine_life,
                epoch=epoch.body.epoch,
                epoch_no=epoch.epoch_no,
                holder=holder.name if holder is not None else "(never opened)",
                tier=holder.tier.value if holder is not None else "unknown",
                durable_id=holder.durable_id if holder is not None else None,
                inventory=holder.inventory.value if holder is not None else "unknown",
                discharge=discharge,
                ack_seq=last.seq if last is not None else None,
                ack_offset=last.offset if last is not None else None,
                installed=last.installed if last is not None else None,
                nonce=last.nonce if last is not None else None,
                old_left=sum(ack.standing.old_left for ack in acks) if acks else None,
                removed=sum(ack.standing.removed for ack in acks),
                read_to=case.fold.next_seq - 1
                if case is not None and case.fold.seen.first is not None
                else None,
                held=sum(count for count, _ in held) if acks else None,
                checksum=f"{sum(total for _, total in held) % MODULUS:032x}" if acks else None,
                stated=_stated(case, holder),
            )
        )
    return rows


def _stated(case: StreamCase | None, holder: HolderView | None) -> Literal["pool", "derived", "none"]:
    """Whether the holder stated all that it was told to hold, and from what it did."""
    if case is None or holder is None:
        return "none"
    stated = {place for place in case.fold.stated if place.holder == holder.name}
    appeared = {place for place in case.appeared if place.holder == holder.name}
    if not stated or appeared - stated:
        return "none"
    return "derived" if case.fold.stated_derived else "pool"
