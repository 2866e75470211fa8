"""Where an order stands, in one word, with who is late and what it waits for. The verdict is the auditor's.

Clocks serve the deadline line alone; nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from events.fold.registry import Registry
from events.fold.registry_state import Deletion, Hold
from events.ids import VerdictKind
from events.scope import covers_domain
from indexer.service.document import hold_document
from indexer.service.holder import HolderStanding, discharged_everywhere, holders_of, unread_domains
from indexer.service.verdict import Judged, VerdictFeed
from router_client.view import LocalView
from router_client.wire import Model

OrderState = Literal["proven", "refuted", "unprovable", "held", "refused", "discharged", "open"]
SETTLED: Mapping[VerdictKind, OrderState] = {
    VerdictKind.PROVEN: "proven",
    VerdictKind.REFUTED: "refuted",
    VerdictKind.UNPROVABLE: "unprovable",
}


class HoldStanding(Model):
    """A legal hold that an order waits for: who placed it, when (by the writer's clock), and why."""

    hold: str
    number: int
    domain: str | None
    tenant: str | None
    placed_by: str
    since_ms: int
    reason: str


class LateHolder(Model):
    """A holder that hasn't discharged an order by its deadline."""

    worker: str
    dp_rank: int
    domain: str
    standing: Literal["owes", "refused"]


class Deadline(Model):
    """When an order should be proven, by the clocks of who wrote it and of this replica. `late` names who keeps
    it back once the deadline has passed; it is empty before that, and once the order is proven."""

    due_ms: int
    hours_left: float
    passed: bool
    late: list[LateHolder]


@dataclass(frozen=True, slots=True)
class Progress:
    """`state` is the newest verdict's word, else `held` if a legal hold stands on any domain in scope, `refused` if
    a holder refuses, `discharged` if all have acked and no verdict says more, else `open`."""

    state: OrderState
    holders: list[HolderStanding]
    unread: list[str]
    discharged_everywhere: bool | None
    holds: list[HoldStanding]
    deadline: Deadline | None


def progress_of(order: Deletion, view: LocalView, judged: Judged | None, now_ms: int) -> Progress:
    """How an order stands here and now."""
    holders, unread = holders_of(order, view), unread_domains(order, view)
    everywhere = discharged_everywhere(holders, unread)
    holds = [] if everywhere else [_shown(hold) for hold in holds_on(order, view.registry)]
    settled = SETTLED.get(judged.given.verdict) if judged is not None else None
    state: OrderState = "open"
    if settled is not None:
        state = settled
    elif holds:
        state = "held"
    elif any(holder.standing == "refused" for holder in holders):
        state = "refused"
    elif everywhere:
        state = "discharged"
    return Progress(
        state, holders, unread, everywhere, holds, _deadline(order, view.registry, holders, state, now_ms)
    )


def holds_on(order: Deletion, registry: Registry) -> list[Hold]:
    """Legal holds on any domain that the order covers, oldest first: hooks carry out nothing of it meanwhile."""
    found: dict[int, Hold] = {}
    if registry.holds:
        for domain in registry.domains.values():
            if covers_domain(order.scope, domain.name, domain.tenant):
                found.update((hold.number, hold) for hold in registry.holds_on(domain.name))
    return [found[number] for number in sorted(found)]


def due_ms(order: Deletion, registry: Registry) -> int | None:
    """When it should be proven: by the order's own deadline, else the strictest policy of a domain in scope."""
    own = getattr(order.body, "deadline_s", None)
    if own is None and order.proves:
        wanted = [
            policy.body.prove_within_s
            for domain in registry.domains.values()
            if covers_domain(order.scope, domain.name, domain.tenant)
            if (policy := registry.policy(domain.name)) is not None
            if policy.body.prove_within_s is not None
        ]
        own = min(wanted, default=None)
    return None if own is None else order.header.written_ms + own * 1_000


def _deadline(
    order: Deletion, registry: Registry, holders: list[HolderStanding], state: OrderState, now_ms: int
) -> Deadline | None:
    due = due_ms(order, registry)
    if due is None:
        return None
    passed = now_ms > due
    late: list[LateHolder] = []
    if passed and state != "proven":
        late = [
            LateHolder(worker=one.worker, dp_rank=one.dp_rank, domain=one.domain, standing=one.standing)
            for one in holders
            if one.standing != "discharged"
        ]
    return Deadline(due_ms=due, hours_left=round((due - now_ms) / 3_600_000, 3), passed=passed, late=late)


def _shown(hold: Hold) -> HoldStanding:
    return HoldStanding(**hold_document(hold))


def word_of(order: Deletion, registry: Registry, judged: Judged | None) -> OrderState:
    """The state without a look at any holder: what `refused` and `discharged` say is `open` here."""
    settled = SETTLED.get(judged.given.verdict) if judged is not None else None
    if settled is not None:
        return settled
    return "held" if holds_on(order, registry) else "open"


def order_ages(registry: Registry, verdicts: VerdictFeed, now_ms: int) -> Mapping[str, tuple[int, float]]:
    """By state, how many deletion requests are in it and the age of the oldest in seconds, by two wall clocks."""
    found: dict[str, tuple[int, float]] = dict.fromkeys(
        ("proven", "refuted", "unprovable", "held", "open"), (0, 0.0)
    )
    for order in registry.deletions.values():
        if order.proves:
            state = word_of(order, registry, verdicts.of(order.number))
            age_s = max(0, now_ms - order.header.written_ms) / 1_000
            count, oldest_s = found[state]
            found[state] = count + 1, max(oldest_s, age_s)
    return found
