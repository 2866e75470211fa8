"""Why a worker was, or wasn't, credited with a prefix: which block ends its match, and for what reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal

from events.fold.state import GroupState, ProfileState, StreamState
from events.ids import CopyState, ExcludeReason, GroupKind, StreamKey, StreamStatus, Tier
from events.keyring import DomainKeys
from events.scope import visible_length
from router_client.answer import choose_profiles, not_yet
from router_client.link import StoreReason, uncredited
from router_client.problem import Problem, ProblemKind, problem
from router_client.query import Query
from router_client.question import Chain, Question
from router_client.shared_store import owners_of, withheld
from router_client.standing import Standing, survey
from router_client.view import LocalView
from router_client.wire import Excluded, Model, TierTokens

MAX_ORDERS = 100
"""Orders named at one block."""


class BlockReason(StrEnum):
    """Why the first block that doesn't count doesn't."""

    ABSENT = "absent"
    NOT_COMMITTED = "not_committed"
    HIDDEN = "hidden_by_order"
    NOT_INDEXED = "not_indexed"


class BlockStop(Model):
    """The first block of the prefix that doesn't count: its place from 0 and its id. `orders` are the numbers
    of the open deletions that hide it."""

    depth: int
    block_id: str
    reason: BlockReason
    orders: tuple[int, ...] = ()


class GroupFound(Model):
    """One attention group. `leading_blocks` count towards full attention; a sliding window or recurrent state
    may be served with gaps, so there `stop` needn't end the match."""

    group: int
    kind: GroupKind
    block_tokens: int
    asked_blocks: int
    leading_blocks: int
    held_blocks: int
    stop: BlockStop | None


class ProfileFound(Model):
    """One profile that the question is about, as this stream declared it."""

    id: str
    model: str | None
    adapter: str | None
    missing: tuple[str, ...]
    groups: tuple[GroupFound, ...]


class StoreFound(Model):
    """A durable store that the rank declares, and its enrolled owner. `uncredited`: why it counts for nothing,
    null where it counts; `owner_reason`: why the owner's stream can't be answered for, in an answer's words."""

    holder: str
    durable_id: str
    tier: Tier
    owner: str | None
    uncredited: StoreReason | None
    owner_reason: ExcludeReason | None


class Explained(Model):
    """One rank. `reason` is the answer's, or null where it is scored; `status` and `fault` are its fold's.
    `tiers` null: not scored."""

    worker: str
    dp_rank: int | None
    reason: ExcludeReason | None
    status: StreamStatus | None
    fault: str | None
    staleness_ms: float | None
    bound_ms: float | None
    basis: str | None
    applied_seq: int | None
    announced_seq: int | None
    profiles: tuple[ProfileFound, ...]
    note: Literal["", "no_such_profile_here", "ids_cannot_be_compared"]
    tiers: TierTokens | None
    stores: tuple[StoreFound, ...] = ()


class Explanation(Model):
    """What stands at the same instant as an answer would."""

    workers: tuple[Explained, ...]
    token: str


def explain(view: LocalView, query: Query, now_ns: int) -> Explanation | Problem:
    """Explains every candidate of the query, which must name some. The caller has checked that the requester
    may read the domain."""
    if not query.candidates:
        return problem(ProblemKind.MALFORMED, "name the workers to explain", field="candidates")
    early = not_yet(view, query)
    if early is not None:
        return early
    keys = view.keyring.get(query.domain)
    if keys is None:
        return problem(ProblemKind.FORBIDDEN, "no such domain for this caller", field="domain")
    eligible, others = survey(view, query, now_ns)
    choose_profiles(view, query, keys, eligible)
    owners = owners_of(view, query, eligible, now_ns)
    question = Question(view, query, keys, eligible, owners)
    found: list[Explained] = []
    for standing in eligible:
        one = _explained(view, query, keys, question, standing)
        if isinstance(one, Problem):
            return one
        found.append(one.model_copy(update={"stores": _stores(view, keys, owners, standing)}))
    found += [_unscored(query, other) for other in others]
    return Explanation(workers=tuple(found), token=view.token())


def _stores(
    view: LocalView, keys: DomainKeys, owners: Mapping[StreamKey, Standing], standing: Standing
) -> tuple[StoreFound, ...]:
    stream = standing.view
    found: list[StoreFound] = []
    for name, holder in stream.state.holders.items() if stream is not None else ():
        if stream is None or holder.durable_id is None:
            continue
        why = uncredited(stream, name, view.registry)
        link = stream.links.get(name)
        lender = owners.get(link.owner.key) if link is not None else None
        if why is None and link is not None and standing.matching:
            whys = [withheld(link, lender, declared, keys) for declared in standing.matching]
            why = None if None in whys else whys[0]
        enrolled = view.registry.durable_owners.get(holder.durable_id)
        found.append(
            StoreFound(
                holder=name,
                durable_id=holder.durable_id,
                tier=holder.tier,
                owner=enrolled.owner if enrolled is not None else None,
                uncredited=why,
                owner_reason=lender.reason if lender is not None else None,
            )
        )
    return tuple(found)


def _unscored(query: Query, other: Excluded) -> Explained:
    return Explained(
        worker=other.worker,
        dp_rank=other.dp_rank,
        reason=other.reason,
        status=None,
        fault=None,
        staleness_ms=None,
        bound_ms=query.bound_ms,
        basis=None,
        applied_seq=None,
        announced_seq=None,
        profiles=(),
        note="",
        tiers=None,
    )


def _explained(
    view: LocalView, query: Query, keys: DomainKeys, question: Question, standing: Standing
) -> Explained | Problem:
    stream = standing.view
    state = stream.state if stream is not None else None
    profiles: list[ProfileFound] = []
    note: Literal["", "no_such_profile_here", "ids_cannot_be_compared"] = ""
    tiers: TierTokens | None = None
    if stream is not None and state is not None:
        note = "" if standing.matching else "no_such_profile_here"
        sizes = stream.layout.block_sizes if stream.layout is not None else ()
        if query.ids is not None and len(sizes) > 1:
            note = "ids_cannot_be_compared"
        else:
            for declared in standing.matching:
                groups = _groups(view, query, keys, question, standing, declared)
                if isinstance(groups, Problem):
                    return groups
                profiles.append(
                    ProfileFound(
                        id=declared.id,
                        model=declared.content.model,
                        adapter=declared.content.adapter,
                        missing=declared.missing,
                        groups=groups,
                    )
                )
        if standing.reason is None:
            match = question.match(standing)
            if isinstance(match, Problem):
                return match
            tiers = match.tiers if match is not None else None
    return Explained(
        worker=standing.key.worker,
        dp_rank=standing.key.rank,
        reason=standing.reason,
        status=state.status if state is not None else None,
        fault=(state.fault or None) if state is not None else None,
        staleness_ms=standing.staleness_ms,
        bound_ms=query.bound_ms,
        basis=standing.basis.value,
        applied_seq=state.next_seq if state is not None else None,
        announced_seq=stream.announced_seq if stream is not None else None,
        profiles=tuple(profiles),
        note=note,
        tiers=tiers,
    )


def _groups(
    view: LocalView,
    query: Query,
    keys: DomainKeys,
    question: Question,
    standing: Standing,
    declared: ProfileState,
) -> tuple[GroupFound, ...] | Problem:
    stream = standing.view
    if stream is None or stream.layout is None:
        return ()
    opened = stream.open_orders(keys)
    lists = view.veils.lists(query.domain)
    veil = view.veils.veil(query.domain, opened, lists, stream.state.standings)
    found: list[GroupFound] = []
    for group in stream.layout.groups:
        chain = question.chain(declared.id, group.block_tokens)
        if isinstance(chain, Problem):
            return chain
        if chain is None:
            continue
        held = [_held(stream.state, group, block) for block in chain.ids]
        visible = veil.visible(chain.ids, declared.id)
        committed = [copy is CopyState.COMMITTED for copy in held]
        present = next((depth for depth, good in enumerate(committed) if not good), len(held))
        leading = min(present, visible)
        if group.kind is GroupKind.FULL and not stream.layout.all_bits & view.index.unsettled:
            top = max(chain.leading.get(bit, 0) for bit in stream.layout.all_bits_of(group.index))
            leading = min(leading, top)
        found.append(
            GroupFound(
                group=group.index,
                kind=group.kind,
                block_tokens=group.block_tokens,
                asked_blocks=len(held),
                leading_blocks=leading,
                held_blocks=sum(committed),
                stop=_stop(view, query.domain, declared.id, chain, held, leading, visible, opened.numbers),
            )
        )
    return tuple(found)


def _stop(
    view: LocalView,
    domain: str,
    profile: str,
    chain: Chain,
    held: Sequence[CopyState | None],
    leading: int,
    visible: int,
    numbers: set[int],
) -> BlockStop | None:
    if leading >= len(held):
        return None
    orders: tuple[int, ...] = ()
    copy = held[leading]
    if visible <= leading:
        reason = BlockReason.HIDDEN
        scopes = {number: view.registry.deletions[number].scope for number in sorted(numbers)}
        hiding = [
            n for n, scope in scopes.items() if visible_length(scope, domain, chain.ids, profile) <= leading
        ]
        orders = tuple(hiding[:MAX_ORDERS])
    elif copy is None:
        reason = BlockReason.ABSENT
    elif copy is not CopyState.COMMITTED:
        reason = BlockReason.NOT_COMMITTED
    else:
        reason = BlockReason.NOT_INDEXED
    return BlockStop(depth=leading, block_id=chain.ids[leading].hex(), reason=reason, orders=orders)


def _held(state: StreamState, group: GroupState, block: bytes) -> CopyState | None:
    """The best state of a block's copies in the group over all of the stream's holders."""
    best: CopyState | None = None
    for (_, number), table in state.copies.items():
        copy = table.get(block) if number == group.index else None
        if copy is not None and (best is None or copy[1].state is CopyState.COMMITTED):
            best = copy[1].state
    return best
