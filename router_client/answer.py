"""The lookup itself: a pure function of the view, the question and the reader's clocks.

The work is bounded by the question (blocks, chains, streams of the fleet), never by how the answer turns out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil

from events.fold.registry_state import Deletion
from events.fold.state import GroupState, ProfileState
from events.identity import root_parent
from events.ids import ExcludeReason, GroupKind, ProfileId, Tier
from events.keyring import DomainKeys
from events.model.profile import transfer_compatible
from events.scope import visible_length
from router_client.problem import Problem, ProblemKind, problem
from router_client.query import Query
from router_client.reach import GroupReach, longest
from router_client.standing import OUT_OF_BOUND, Standing, survey
from router_client.stream_view import TIERS, Layout, StreamView
from router_client.view import LocalView
from router_client.wire import (
    Answer,
    Coverage,
    IdentityWanted,
    Match,
    OnStale,
    QuotaStanding,
    StreamPosition,
    TierTokens,
)

PROFILE_ID_LENGTH = 64


def answer(view: LocalView, query: Query, now_ns: int, wall_ms: int) -> Answer | Problem:
    """What the view knows of the prefix within the caller's bound, or why it says nothing.

    `now_ns` is the reader's monotonic clock that counts suspended time, `wall_ms` its wall clock, for people
    only. The caller has checked that the requester may read the domain.
    """
    early = _not_yet(view, query)
    if early is not None:
        return early
    keys = view.keyring.get(query.domain)
    if keys is None:
        return problem(ProblemKind.FORBIDDEN, "no such domain for this caller", field="domain")
    eligible, others = survey(view, query, now_ns)
    if not _choose_profiles(view, query, keys, eligible):
        if not view.caught_up:
            return problem(ProblemKind.INDEX_UNAVAILABLE, "the log is still being read", retry_after_ms=500)
        return problem(
            ProblemKind.PROFILE_UNKNOWN, "no worker has declared it in this domain", field="profile"
        )
    included = [standing for standing in eligible if standing.reason is None]
    coverage = Coverage(included=len(included), eligible=len(eligible))
    refusal = _refusal(view, query, eligible, included, coverage)
    if refusal is not None:
        return refusal
    question = _Question(view, query, keys, included)
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
    as_of, staleness_ms = _age(included, wall_ms)
    return Answer(
        matches=matches if query.limit is None else matches[: query.limit],
        excluded=[s.excluded(s.reason) for s in eligible if s.reason is not None] + others,
        complete=coverage.included == coverage.eligible > 0
        and all(s.within_bound and s.view is not None and not s.view.partial for s in included),
        coverage=coverage,
        as_of=as_of,
        staleness_ms=staleness_ms,
        token=view.token(),
        quota_state=_quota(view, query),
    )


def _not_yet(view: LocalView, query: Query) -> Problem | None:
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
        return _too_many(view, blocks)
    return None


def _too_many(view: LocalView, blocks: int) -> Problem:
    return problem(ProblemKind.TOO_MANY_BLOCKS, f"{blocks} blocks", limit=view.limits.max_blocks)


def _choose_profiles(view: LocalView, query: Query, keys: DomainKeys, eligible: list[Standing]) -> bool:
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


@dataclass(frozen=True, slots=True)
class _Reach:
    """Usable tokens by cumulative tier, under one profile."""

    tokens: tuple[int, int, int, int]
    block_tokens: int
    profile: ProfileState

    @property
    def best(self) -> int:
        return self.tokens[3]


class _Question:
    """One question's chains, hashed and matched once each, whatever the number of streams."""

    def __init__(self, view: LocalView, query: Query, keys: DomainKeys, included: Sequence[Standing]) -> None:
        self._view, self._query, self._keys = view, query, keys
        self._chains: dict[tuple[ProfileId, int], list[bytes]] = {}
        self._lengths: dict[tuple[ProfileId, int], dict[int, int]] = {}
        self._visible: dict[tuple[ProfileId, int, tuple[int, ...]], int] = {}
        self._orders: list[Deletion] = view.registry.deletions_of(query.domain)
        self._live = 0
        for standing in included:
            if standing.view is not None and standing.view.layout is not None:
                self._live |= standing.view.layout.all_bits
        self._live &= ~view.index.unsettled

    def match(self, standing: Standing) -> Match | Problem | None:
        """The stream's match, None where it has nothing (but a candidate gets a zero). Gives the standing a
        reason where the question can't be answered for it."""
        stream = standing.view
        if stream is None:
            return None
        best: _Reach | None = None
        for declared in standing.matching:
            reach = self._reach(stream, declared)
            if isinstance(reach, Problem):
                return reach
            if reach is None:
                standing.reason = ExcludeReason.PROFILE_INCOMPLETE
                return None
            if best is None or reach.best > best.best:
                best = reach
        if best is None or best.best == 0:
            return self._zero(standing, stream, best) if self._query.candidates is not None else None
        return self._made(standing, stream, best)

    def _made(self, standing: Standing, stream: StreamView, reach: _Reach) -> Match:
        query, key = self._query, standing.key
        _, basis = stream.fresh(query.basis)
        compatible: bool | None = None
        if query.layout is not None and not reach.profile.missing:
            compatible = transfer_compatible(reach.profile.layout, query.layout)
        gpu, cpu, disk, remote = reach.tokens
        return Match(
            worker=key.worker,
            endpoint=standing.endpoint,
            dp_rank=key.rank,
            tiers=TierTokens(gpu=gpu, cpu=cpu, disk=disk, remote=remote),
            matched_blocks=remote // reach.block_tokens,
            matched_tokens=remote,
            staleness_ms=standing.staleness_ms,
            basis=basis,
            identity="unverified" if reach.profile.missing else "verified",
            position=StreamPosition(
                partition=stream.partition,
                offset=self._view.position(stream.partition),
                epoch=key.epoch,
                epoch_no=stream.state.epoch_no,
                next_seq=stream.state.next_seq,
            ),
            load=stream.load,
            transfer_compatible=compatible,
            within_bound=standing.within_bound,
        )

    def _zero(self, standing: Standing, stream: StreamView, reach: _Reach | None) -> Match:
        if reach is not None:
            return self._made(standing, stream, reach)
        _, basis = stream.fresh(self._query.basis)
        return Match(
            worker=standing.key.worker,
            endpoint=standing.endpoint,
            dp_rank=standing.key.rank,
            tiers=TierTokens(gpu=0, cpu=0, disk=0, remote=0),
            matched_blocks=0,
            matched_tokens=0,
            staleness_ms=standing.staleness_ms,
            basis=basis,
            identity="unverified",
            position=StreamPosition(
                partition=stream.partition,
                offset=self._view.position(stream.partition),
                epoch=standing.key.epoch,
                epoch_no=stream.state.epoch_no,
                next_seq=stream.state.next_seq,
            ),
            load=stream.load,
            within_bound=standing.within_bound,
        )

    def _reach(self, stream: StreamView, declared: ProfileState) -> _Reach | Problem | None:
        """None: the question can't be answered for this stream (ids of another block size, or more
        profiles than one question is hashed for)."""
        layout = stream.layout
        if layout is None or not layout.groups:
            return _Reach((0, 0, 0, 0), 1, declared)
        if self._query.ids is not None and len({g.block_tokens for g in layout.groups}) > 1:
            return None
        chains: dict[int, list[bytes]] = {}
        for group in layout.groups:
            chain = self._chain(declared.id, group.block_tokens)
            if chain is None or isinstance(chain, Problem):
                return chain
            chains[group.block_tokens] = chain
        orders = self._open_orders(stream)
        limit = min(self._visible_tokens(declared.id, size, chain, orders) for size, chain in chains.items())
        by_level = [
            self._level(layout, level, declared.id, chains, limit) for level in range(len(layout.tiers))
        ]
        return _Reach(_cumulative(layout.tiers, by_level), layout.groups[0].block_tokens, declared)

    def _level(
        self, layout: Layout, level: int, profile: ProfileId, chains: dict[int, list[bytes]], limit: int
    ) -> int:
        if layout.plain:
            group = layout.groups[0]
            leading = self._lengths[profile, group.block_tokens].get(layout.bits[group.index, level], 0)
            return min(leading * group.block_tokens, limit)
        reaches = [
            self._group_reach(group, layout.bits[group.index, level], profile, chains)
            for group in layout.groups
        ]
        return longest(reaches, limit)

    def _group_reach(
        self, group: GroupState, bit: int, profile: ProfileId, chains: dict[int, list[bytes]]
    ) -> GroupReach:
        size = group.block_tokens
        if group.kind is GroupKind.FULL:
            return GroupReach(group.kind, size, None, self._lengths[profile, size].get(bit, 0))
        held = self._view.index.resident_run(chains[size], bit)
        return GroupReach(group.kind, size, group.window, held=held)

    def _chain(self, profile: ProfileId, block_tokens: int) -> list[bytes] | Problem | None:
        known = self._chains.get((profile, block_tokens))
        if known is not None:
            return known
        query, limits = self._query, self._view.limits
        if query.ids is not None:
            chain = list(query.ids)
        else:
            tokens = query.tokens or b""
            blocks = len(tokens) // (4 * block_tokens)
            if blocks > limits.max_blocks:
                return _too_many(self._view, blocks)
            if len(self._chains) >= limits.max_chains:
                return None
            chain = self._keys.hasher().chain(root_parent(profile), tokens, block_tokens)
        self._chains[profile, block_tokens] = chain
        self._lengths[profile, block_tokens] = self._view.index.match(chain, self._live)
        return chain

    def _open_orders(self, stream: StreamView) -> tuple[int, ...]:
        """Numbers of the domain's deletions that this stream hasn't discharged."""
        if not self._orders:
            return ()
        name = stream.alias(self._keys)
        standings = stream.state.standings
        return tuple(
            order.number
            for order in self._orders
            if (standing := standings.get((name, order.number))) is None or not standing.discharged
        )

    def _visible_tokens(
        self, profile: ProfileId, block_tokens: int, chain: Sequence[bytes], orders: tuple[int, ...]
    ) -> int:
        known = self._visible.get((profile, block_tokens, orders))
        if known is None:
            known = len(chain)
            for number in orders:
                scope = self._view.registry.deletions[number].scope
                known = min(known, visible_length(scope, chain, profile))
            self._visible[profile, block_tokens, orders] = known
        return known * block_tokens


def _cumulative(tiers: Sequence[Tier], by_level: Sequence[int]) -> tuple[int, int, int, int]:
    """Tokens for gpu, cpu, disk, remote: a tier that the stream lacks adds nothing to the ones below it."""
    tokens: list[int] = []
    best = 0
    for tier in TIERS:
        if tier in tiers:
            best = max(best, by_level[tiers.index(tier)])
        tokens.append(best)
    return tokens[0], tokens[1], tokens[2], tokens[3]
