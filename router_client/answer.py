"""The lookup itself: a pure function of the view, the question and the reader's clocks.

The work is bounded by the question (blocks, chains, streams of the fleet), never by how the answer turns out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil

from events.fold.staleness import staleness_ns
from events.ids import ExcludeReason
from events.keyring import DomainKeys
from router_client.limit import MILLISECOND_NS
from router_client.problem import Problem, ProblemKind, problem
from router_client.query import Query
from router_client.question import Question, too_many_blocks
from router_client.shared_store import owners_of
from router_client.standing import CURABLE, OUT_OF_BOUND, Standing, survey
from router_client.stream_view import StreamView
from router_client.view import LocalView
from router_client.wire import (
    Answer,
    Coverage,
    IdentityWanted,
    Match,
    OnStale,
    QuotaStanding,
)

PROFILE_ID_LENGTH = 64
UNREAD = OUT_OF_BOUND - CURABLE - {ExcludeReason.UNCONFIRMED}
"""Reasons that mean that records of a stream are missing, or can't be gone by."""

UNDECLARED = (
    "no worker has declared it in this domain: compare its name and the domain with /v1/workers; a worker whose "
    "bridge is still opening is listed there as unopened, so ask again in a moment"
)


def answer(view: LocalView, query: Query, now_ns: int, wall_ms: int) -> Answer | Problem:
    """What the view knows of the prefix within the caller's bound, or why it says nothing.

    `now_ns` is the reader's monotonic clock that counts suspended time, `wall_ms` its wall clock, for people
    only. The caller has checked that the requester may read the domain.
    """
    early = not_yet(view, query)
    if early is not None:
        return early
    keys = view.keyring.get(query.domain)
    if keys is None:
        return problem(ProblemKind.FORBIDDEN, "no such domain for this caller", field="domain")
    eligible, others = survey(view, query, now_ns)
    if not choose_profiles(view, query, keys, eligible):
        if not view.caught_up:
            return problem(ProblemKind.INDEX_UNAVAILABLE, "the log is still being read", retry_after_ms=500)
        if not may_be_declared(view, query, eligible, now_ns):
            return problem(ProblemKind.PROFILE_UNKNOWN, UNDECLARED, field="profile")
    included = [standing for standing in eligible if standing.reason is None]
    coverage = Coverage(included=len(included), eligible=len(eligible))
    refusal = _refusal(view, query, eligible, included, coverage)
    if refusal is not None:
        return refusal
    question = Question(view, query, keys, included, owners_of(view, query, included, now_ns))
    matches: list[Match] = []
    for standing in included:
        found = question.match(standing)
        if isinstance(found, Problem):
            return found
        if found is not None:
            matches.append(found)
    if any(standing.reason is not None for standing in included):
        included = [standing for standing in included if standing.reason is None]
        coverage = Coverage(included=len(included), eligible=len(eligible))
        refusal = _refusal(view, query, eligible, included, coverage)
        if refusal is not None:
            return refusal
    matches.sort(key=lambda m: (-m.matched_tokens, -m.tiers.gpu, m.worker, m.dp_rank))
    as_of, staleness_ms = _age([*included, *question.lenders], wall_ms)
    cut = query.limit is not None and query.candidates is None and len(matches) > query.limit
    return Answer(
        matches=matches[: query.limit] if cut else matches,
        excluded=[s.excluded(s.reason) for s in eligible if s.reason is not None] + others,
        complete=not cut
        and not question.withheld
        and not question.doubted
        and coverage.included == coverage.eligible > 0
        and all(s.within_bound and s.view is not None and not s.view.partial for s in included)
        and all(lender.within_bound for lender in question.lenders),
        coverage=coverage,
        as_of=as_of,
        staleness_ms=staleness_ms,
        token=view.token(),
        quota_state=_quota(view, query),
    )


def not_yet(view: LocalView, query: Query) -> Problem | None:
    """Why nothing can be said at all: before kv.control is read, below the floor, ahead of this replica."""
    log = view.registry.log
    if not log or view.control_current_ns() is None:
        return problem(ProblemKind.INDEX_UNAVAILABLE, "kv.control is still being read", retry_after_ms=500)
    if query.bound_ms is not None and query.on_stale is not OnStale.INCLUDE:
        floor_ms = view.floor_ms()
        if query.bound_ms < floor_ms:
            return problem(
                ProblemKind.BOUND_BELOW_FLOOR,
                "beacons and pulses are not written that often",
                field="max_staleness_ms",
                bound_ms=query.bound_ms,
                floor_ms=floor_ms,
            )
    token = query.min_token
    if token is not None:
        if token.log != log:
            return problem(ProblemKind.TOKEN_FOREIGN, field="min_token")
        if not view.reached(token):
            return problem(ProblemKind.TOKEN_AHEAD, field="min_token", retry_after_ms=100)
    blocks = len(query.ids) if query.ids is not None else 0
    if blocks > view.limits.max_blocks:
        return too_many_blocks(view, blocks)
    return None


def choose_profiles(view: LocalView, query: Query, keys: DomainKeys, eligible: list[Standing]) -> bool:
    """Gives every standing its matching profiles; false if nobody has declared the profile, also earlier, and
    no worker is registered under that model."""
    by_id = len(query.profile) == PROFILE_ID_LENGTH and query.adapter is None
    known = False
    for standing in eligible:
        if standing.view is None:
            continue
        matching = tuple(
            declared
            for declared in standing.view.profiles(keys)
            if (
                declared.id == query.profile
                if by_id
                else (declared.content.model, declared.content.adapter) == (query.profile, query.adapter)
            )
        )
        known = known or bool(matching)
        if query.identity is IdentityWanted.VERIFIED and matching:
            verified = tuple(declared for declared in matching if not declared.missing)
            if not verified and standing.reason is None:
                standing.reason = ExcludeReason.PROFILE_INCOMPLETE
            matching = verified
        standing.matching = matching
    if known:
        return True
    seen = view.profiles_seen.get(query.domain, {})
    if query.profile in seen or (query.profile, query.adapter) in seen.values():
        return True
    registered = view.registry.registrations
    models = {registered[key].body.model for key in view.registry.current.values()}
    return query.profile in models and query.adapter is None


def may_be_declared(view: LocalView, query: Query, eligible: list[Standing], now_ns: int) -> bool:
    """Whether a profile that nobody is known to have declared may be declared all the same: records of some
    stream of the fleet, candidate or not, are missing here; or nothing shows that this reader is current, as no
    stream is in bound (without a bound: none younger than the time after which one is silent). Then coverage
    decides what can be answered, as ever."""
    if query.candidates is not None:
        eligible, _ = survey(view, replace(query, candidates=None), now_ns)
    bound_ms = view.limits.silent_after_ns / MILLISECOND_NS if query.bound_ms is None else query.bound_ms
    if not eligible:
        age_ns = staleness_ns(now_ns, now_ns, view.control_current_ns())
        return age_ns is None or age_ns > bound_ms * MILLISECOND_NS
    current = False
    for standing in eligible:
        in_bound = standing.staleness_ms is not None and standing.staleness_ms <= bound_ms
        if standing.reason in UNREAD:
            return True
        if not in_bound and standing.view is not None and unread(standing.view):
            return True
        current = current or in_bound
    return not current


def unread(stream: StreamView) -> bool:
    """Whether the stream has announced more than is read here."""
    return (stream.announced_seq or 0) > stream.state.next_seq


def _refusal(
    view: LocalView, query: Query, eligible: list[Standing], included: list[Standing], coverage: Coverage
) -> Problem | None:
    """The table of `on_stale`: when an answer out of bound is a 503."""
    if query.on_stale is OnStale.INCLUDE:
        return None
    out = [s for s in eligible if s.reason in OUT_OF_BOUND]
    if query.on_stale is OnStale.FAIL:
        if not out and included:
            return None
        needed = len(eligible)
    else:
        wanted = query.min_coverage if query.min_coverage is not None else 1
        needed = ceil(wanted * len(eligible)) if isinstance(wanted, float) else wanted
        if len(included) >= needed:
            return None
    ages = sorted(
        s.staleness_ms
        for s in eligible
        if s.staleness_ms is not None and s.reason in (None, ExcludeReason.STALE, ExcludeReason.SILENT)
    )
    reachable = 0 < needed <= len(ages)
    return problem(
        ProblemKind.STALENESS_BOUND_UNMET,
        f"{coverage} streams are within the bound" if eligible else "no worker is registered",
        bound_ms=query.bound_ms,
        floor_ms=view.floor_ms(),
        best_achievable_ms=ages[needed - 1] if reachable else None,
        coverage=coverage,
        lagging=[s.lagging(s.reason) for s in eligible if s.reason is not None],
        retry_after_ms=round(view.limits.beacon_interval_ms + view.limits.pulse_interval_ms),
    )


def _age(included: Sequence[Standing], wall_ms: int) -> tuple[str | None, float | None]:
    ages = [standing.staleness_ms for standing in included]
    known = [age for age in ages if age is not None]
    if not ages or len(known) < len(ages):
        return None, None
    worst = max(known)
    at = datetime.fromtimestamp((wall_ms - worst) / 1_000, UTC)
    return at.isoformat(timespec="milliseconds"), worst


def _quota(view: LocalView, query: Query) -> list[QuotaStanding] | None:
    owner = view.registry.owner(query.domain)
    if not query.show_quota or owner is None or not view.quotas:
        return None
    return [
        QuotaStanding(tier=tier, unit=unit, level=state.level)
        for (tenant, tier, unit), state in sorted(view.quotas.items())
        if tenant == owner
    ]
