"""Where an order stands, in one word, with who is late and what it waits for. The verdict is the auditor's.

Clocks serve the deadline line alone; nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Literal, get_args

from events.fold.registry import Registry
from events.fold.registry_state import Deletion, Hold
from events.ids import VerdictKind
from events.scope import covers_domain
from indexer.service.document import hold_document
from indexer.service.holder import (
    HolderStanding,
    discharged_everywhere,
    holders_of,
    owing_streams,
    unread_domains,
    words_of_holders,
)
from indexer.service.verdict import Judged, VerdictFeed
from router_client.view import LocalView
from router_client.wire import Model

OrderState = Literal["proven", "refuted", "unprovable", "held", "refused", "discharged", "open"]
LOOKS = 20_000
"""Streams that are looked at for a list or a metric, over all orders: some 50 ms of the service's one thread."""
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
    words = {holder.standing for holder in holders}
    state = _settled(judged) or _unsettled(words, unread=bool(unread), held=bool(holds))
    return Progress(
        state, holders, unread, everywhere, holds, _deadline(order, view.registry, holders, state, now_ms)
    )


def _settled(judged: Judged | None) -> OrderState | None:
    return SETTLED.get(judged.given.verdict) if judged is not None else None


def _unsettled(words: Set[str], *, unread: bool, held: bool) -> OrderState:
    """The state of an order that no verdict settles, by its holders' words. `unread`: not all can be read here."""
    discharged = words == {"discharged"} and not unread
    if held and not discharged:
        return "held"
    if "refused" in words:
        return "refused"
    return "discharged" if discharged else "open"


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
    return Deadline(
        due_ms=due, hours_left=round((due - now_ms) / 3_600_000, 3) + 0.0, passed=passed, late=late
    )


def _shown(hold: Hold) -> HoldStanding:
    return HoldStanding(**hold_document(hold))


def states_of(orders: Iterable[Deletion], view: LocalView, verdicts: VerdictFeed) -> dict[int, OrderState]:
    """The state of each order, by its number. Of those that no verdict settles only the newest are looked at holder by
    holder, as many as `LOOKS` allows: the others are `held` or `open`."""
    owing, registry = owing_streams(view), view.registry
    looks = LOOKS
    found: dict[int, OrderState] = {}
    for order in sorted(orders, key=lambda one: one.number, reverse=True):
        settled = _settled(verdicts.of(order.number))
        if settled is not None:
            found[order.number] = settled
            continue
        held = bool(holds_on(order, registry))
        words: Set[str] = set()
        looks -= len(owing)
        if looks >= 0:
            words = words_of_holders(order, view, owing)
        found[order.number] = _unsettled(words, unread=bool(unread_domains(order, view)), held=held)
    return found


def order_ages(view: LocalView, verdicts: VerdictFeed, now_ms: int) -> Mapping[str, tuple[int, float]]:
    """By state, how many deletion requests are in it and the age of the oldest in seconds, by two wall clocks."""
    found: dict[str, tuple[int, float]] = dict.fromkeys(get_args(OrderState), (0, 0.0))
    proving = [order for order in view.registry.deletions.values() if order.proves]
    states = states_of(proving, view, verdicts)
    for order in proving:
        age_s = max(0, now_ms - order.header.written_ms) / 1_000
        count, oldest_s = found[states[order.number]]
        found[states[order.number]] = count + 1, max(oldest_s, age_s)
    return found
