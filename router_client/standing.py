"""Where every stream of the fleet stands for one question: eligible or not, in bound or not, and why."""

from __future__ import annotations

from dataclasses import dataclass

from events.fold.staleness import staleness_ns
from events.fold.state import ProfileState
from events.ids import CANARY_WORKER, Alarm, Basis, ExcludeReason, StreamKey, StreamStatus
from router_client.limit import MILLISECOND_NS
from router_client.problem import Lagging
from router_client.query import Query
from router_client.stream_view import StreamView
from router_client.view import LocalView
from router_client.wire import Excluded, OnStale

OUT_OF_BOUND = frozenset(
    {
        ExcludeReason.STALE,
        ExcludeReason.SILENT,
        ExcludeReason.GAP,
        ExcludeReason.UNOPENED,
        ExcludeReason.QUARANTINED,
        ExcludeReason.UNREGISTERED,
        ExcludeReason.UNCONFIRMED,
        ExcludeReason.UNPUBLISHED,
    }
)
"""Reasons that mean «not known well enough», as against «not to be used»."""
CURABLE = frozenset({ExcludeReason.STALE, ExcludeReason.SILENT})
"""Reasons that `on_stale: include` overrides: what is known was true once."""


@dataclass(slots=True)
class Standing:
    """One eligible stream in one question. `reason` None: it is scored. `matching`: its declared profiles
    that the question is about."""

    key: StreamKey
    endpoint: str | None
    view: StreamView | None
    staleness_ms: float | None
    reason: ExcludeReason | None
    basis: Basis = Basis.UNCONFIRMED
    within_bound: bool = True
    matching: tuple[ProfileState, ...] = ()

    def excluded(self, reason: ExcludeReason) -> Excluded:
        return Excluded(
            worker=self.key.worker, dp_rank=self.key.rank, reason=reason, staleness_ms=self.staleness_ms
        )

    def lagging(self, reason: ExcludeReason) -> Lagging:
        return Lagging(
            worker=self.key.worker,
            dp_rank=self.key.rank,
            reason=reason,
            staleness_ms=self.staleness_ms,
            applied_seq=self.view.state.next_seq if self.view else None,
            announced_seq=self.view.announced_seq if self.view else None,
        )


def survey(view: LocalView, query: Query, now_ns: int) -> tuple[list[Standing], list[Excluded]]:
    """(eligible streams, others worth naming). Eligible: registered, not superseded, fenced or closed, and not
    of an engine whose end is attested (named `fenced`, as it will be); with `candidates`, only theirs."""
    registry = view.registry
    control_ns = view.control_current_ns()
    wanted = frozenset(query.candidates) if query.candidates is not None else None
    eligible: list[Standing] = []
    others: list[Excluded] = []
    seen: set[str] = set()
    for key in registry.current.values():
        if key.worker == CANARY_WORKER or (wanted is not None and key.worker not in wanted):
            continue
        registration = registry.registrations[key]
        stream = view.streams.get(key)
        if key in registry.fenced or registry.ended(key):
            seen.add(key.worker)
            others.append(
                Excluded(worker=key.worker, dp_rank=key.rank, reason=ExcludeReason.FENCED, staleness_ms=None)
            )
            continue
        if stream is not None and stream.state.status is StreamStatus.CLOSED:
            continue
        seen.add(key.worker)
        standing = _standing(view, key, stream, query, control_ns, now_ns)
        standing.endpoint = registration.body.endpoint
        eligible.append(standing)
    for key in view.streams if len(view.streams) > len(eligible) else ():
        if (
            key not in registry.registrations
            and key.worker != CANARY_WORKER
            and (wanted is None or key.worker in wanted)
        ):
            seen.add(key.worker)
            others.append(
                Excluded(
                    worker=key.worker, dp_rank=key.rank, reason=ExcludeReason.UNREGISTERED, staleness_ms=None
                )
            )
    others.extend(
        Excluded(worker=worker, dp_rank=None, reason=ExcludeReason.UNREGISTERED, staleness_ms=None)
        for worker in sorted((wanted or frozenset()) - seen)
    )
    return eligible, others


def _standing(
    view: LocalView,
    key: StreamKey,
    stream: StreamView | None,
    query: Query,
    control_ns: int | None,
    now_ns: int,
) -> Standing:
    if stream is None:
        return Standing(key, None, None, None, ExcludeReason.UNOPENED)
    state = stream.state
    as_of, basis = stream.fresh(query.basis)
    age_ns = staleness_ns(now_ns, as_of, control_ns)
    age_ms = None if age_ns is None else age_ns / MILLISECOND_NS
    standing = Standing(key, None, stream, age_ms, None, basis)
    registration = view.registry.registrations[key]
    if stream.shed or state.status is StreamStatus.GAP:
        standing.reason = ExcludeReason.GAP
    elif state.status is StreamStatus.UNOPENED:
        standing.reason = ExcludeReason.UNOPENED
    elif registration.epoch_no != state.epoch_no or (
        state.first_prev and state.first_prev != registration.record_sha256
    ):
        standing.reason = ExcludeReason.UNREGISTERED
    elif (
        state.status is StreamStatus.QUARANTINED or stream.divergent or stream.compare_control(view.registry)
    ):
        standing.reason = ExcludeReason.QUARANTINED
    elif state.status is StreamStatus.DRAINING or stream.alarm is Alarm.DRAINING:
        standing.reason = ExcludeReason.DRAINING
    elif stream.alarm is not None:
        standing.reason = ExcludeReason.UNPUBLISHED
    elif stream.layout is not None and stream.layout.all_bits & view.index.unsettled:
        standing.reason = ExcludeReason.STALE
    else:
        _judge_age(standing, stream, view, query, now_ns)
    if standing.reason is not None:
        standing.within_bound = False
    if standing.reason in CURABLE and query.on_stale is OnStale.INCLUDE and not _unsettled(stream, view):
        standing.reason = None
    return standing


def _unsettled(stream: StreamView, view: LocalView) -> bool:
    return stream.layout is not None and bool(stream.layout.all_bits & view.index.unsettled)


def _judge_age(standing: Standing, stream: StreamView, view: LocalView, query: Query, now_ns: int) -> None:
    """Sets the reason where the stream is older than the bound; `any` has no bound, but what isn't known at
    all is never within it."""
    age_ms, bound_ms = standing.staleness_ms, query.bound_ms
    if bound_ms is None:
        standing.within_bound = age_ms is not None
        if age_ms is None and stream.as_of_ns:
            standing.reason = ExcludeReason.UNCONFIRMED
        return
    if age_ms is not None and age_ms <= bound_ms:
        return
    if age_ms is None and stream.as_of_ns:
        standing.reason = ExcludeReason.UNCONFIRMED
    elif stream.silent(now_ns, view.limits.silent_after_ns):
        standing.reason = ExcludeReason.SILENT
    else:
        standing.reason = ExcludeReason.STALE
