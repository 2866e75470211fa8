"""One question's chains, hashed and matched once each, and what each stream has of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from events.fold.state import Copy, GroupState, ProfileState
from events.identity import root_parent
from events.ids import CopyState, ExcludeReason, GroupKind, ProfileId, StreamKey
from events.keyring import DomainKeys
from events.model.profile import transfer_compatible
from router_client.link import StoreReason
from router_client.problem import Problem, ProblemKind, problem
from router_client.query import Query
from router_client.reach import GroupReach, longest
from router_client.shared_store import withheld
from router_client.standing import Standing
from router_client.stream_view import BASES, Layout, StreamView
from router_client.veil import CLEAR, Veil
from router_client.view import LocalView
from router_client.wire import Match, StreamPosition, TierTokens

Four = tuple[int, int, int, int]


def too_many_blocks(view: LocalView, blocks: int) -> Problem:
    """The refusal of a longer prefix than one question may have."""
    return problem(ProblemKind.TOO_MANY_BLOCKS, f"{blocks} blocks", limit=view.limits.max_blocks)


@dataclass(slots=True)
class Chain:
    """One profile's ids in one block size, the leading blocks by bit, and what deletions leave visible."""

    ids: Sequence[bytes]
    leading: dict[int, int]
    visible: dict[Veil, int]


@dataclass(slots=True)
class Reach:
    """Usable tokens by cumulative tier, under one profile."""

    tokens: Four
    block_tokens: int
    verified: bool
    compatible: bool | None
    lenders: tuple[Standing, ...] = ()
    """Whose word the shared stores' part rests on."""
    doubted: bool = False
    """Whether a copy that may be gone ends it."""


class Question:
    """Asked of one stream after the other; `included` are all that will be asked, `owners` the streams that
    vouch for the shared stores these reach. `withheld`: some store was left out, as its owner's stream can't be
    answered for, so that nobody may claim absence; `doubted`: a copy that may be gone may lengthen some match.
    `lenders`: whose word was used."""

    __slots__ = (
        "_chains",
        "_keys",
        "_live",
        "_ordered",
        "_orders",
        "_owners",
        "_query",
        "_view",
        "doubted",
        "lenders",
        "withheld",
    )

    def __init__(
        self,
        view: LocalView,
        query: Query,
        keys: DomainKeys,
        included: Sequence[Standing],
        owners: Mapping[StreamKey, Standing] | None = None,
    ) -> None:
        self._owners = owners or {}
        self.withheld = False
        self.doubted = False
        self.lenders: list[Standing] = []
        self._view, self._query, self._keys = view, query, keys
        self._chains: dict[tuple[ProfileId, int], Chain] = {}
        self._orders = view.veils.lists(query.domain)
        self._ordered = any(self._orders)
        live = 0
        for standing in included:
            if standing.view is not None and standing.view.layout is not None:
                live |= standing.view.layout.all_bits
        self._live = live & ~view.index.unsettled

    def match(self, standing: Standing) -> Match | Problem | None:
        """The stream's match, None where it has nothing (but a candidate gets a zero). Gives the standing a
        reason where the question can't be answered for it."""
        stream = standing.view
        if stream is None:
            return None
        best: Reach | None = None
        doubted = False
        for declared in standing.matching:
            reach = self._reach(stream, declared)
            if isinstance(reach, Problem):
                return reach
            if reach is None:
                standing.reason = ExcludeReason.PROFILE_INCOMPLETE
                return None
            doubted = doubted or reach.doubted
            if best is None or reach.tokens[3] > best.tokens[3]:
                best = reach
        if best is None:
            best = Reach((0, 0, 0, 0), 1, False, None)
        self.doubted = self.doubted or doubted
        if best.tokens[3] == 0 and self._query.candidates is None:
            return None
        return self._made(standing, stream, best, doubted)

    def _made(self, standing: Standing, stream: StreamView, reach: Reach, doubted: bool) -> Match:
        key, state = standing.key, stream.state
        tokens = reach.tokens
        if any(lender.staleness_ms is None for lender in reach.lenders):
            worst = None
        else:
            ages = [lender.staleness_ms or 0.0 for lender in reach.lenders]
            worst = None if standing.staleness_ms is None else max([standing.staleness_ms, *ages])
        basis = max((standing.basis, *(lender.basis for lender in reach.lenders)), key=BASES.index)
        return Match(
            worker=key.worker,
            endpoint=standing.endpoint,
            dp_rank=key.rank,
            tiers=TierTokens(*tokens),
            matched_blocks=tokens[3] // reach.block_tokens,
            matched_tokens=tokens[3],
            staleness_ms=worst,
            basis=basis,
            identity="verified" if reach.verified else "unverified",
            position=StreamPosition(
                stream.partition,
                self._view.position(stream.partition),
                key.epoch,
                state.epoch_no,
                state.next_seq,
            ),
            within_bound=standing.within_bound and all(lender.within_bound for lender in reach.lenders),
            inventory="partial" if doubted or stream.partial else "known",
            load=stream.load,
            transfer_compatible=reach.compatible,
        )

    def _reach(self, stream: StreamView, declared: ProfileState) -> Reach | Problem | None:
        """None: the question can't be answered for this stream (ids of another block size, or more
        profiles than one question is hashed for)."""
        layout = stream.layout
        if (
            layout is not None
            and layout.plain
            and len(layout.tiers) == 1
            and self._query.layout is None
            and not stream.links
        ):
            return self._simple(stream, layout, declared)
        tokens: Four = (0, 0, 0, 0)
        size = 1
        lenders: tuple[Standing, ...] = ()
        doubted = False
        if layout is not None and layout.groups:
            if self._query.ids is not None and len(layout.block_sizes) > 1:
                return None
            chains: dict[int, Chain] = {}
            for size in layout.block_sizes:
                chain = self.chain(declared.id, size)
                if chain is None or isinstance(chain, Problem):
                    return chain
                chains[size] = chain
            limit = self._limit(stream, declared.id, chains)
            by_level = [self._level(layout, level, chains, limit) for level in range(len(layout.tiers))]
            if stream.links:
                lenders = self._borrow(stream, layout, declared, chains, by_level)
            by_level.append(0)
            tokens = (
                by_level[layout.levels[0]],
                by_level[layout.levels[1]],
                by_level[layout.levels[2]],
                by_level[layout.levels[3]],
            )
            size = layout.groups[0].block_tokens
            doubted = self._may_go_on(stream, layout, declared.id, chains)
        wanted = self._query.layout
        compatible = None
        if wanted is not None and not declared.missing:
            compatible = transfer_compatible(declared.layout, wanted)
        return Reach(tokens, size, not declared.missing, compatible, lenders, doubted)

    def _borrow(
        self,
        stream: StreamView,
        layout: Layout,
        declared: ProfileState,
        chains: dict[int, Chain],
        by_level: list[int],
    ) -> tuple[Standing, ...]:
        """Holds the levels that shared stores add to what their owners' streams can be answered for, have no
        open deletion on, and hold in the same shape. Returns the owners whose word was used, also where it
        adds nothing: that the store hasn't more is their word too."""
        first = min(
            layout.tiers.index(tier)
            for name, holder in stream.state.holders.items()
            if name in stream.links
            for tier in (holder.tier,)
        )
        below = by_level[first - 1] if first else 0
        consulted: list[Standing] = []
        limits: list[int] = []
        for link in stream.links.values():
            lender = self._owners.get(link.owner.key)
            why = withheld(link, lender, declared, self._keys)
            if why is StoreReason.OWNER_OUT_OF_BOUND or lender is None:
                self.withheld = True
                continue
            if why is not StoreReason.UNVERIFIED:
                consulted.append(lender)
            if why is None:
                limits.append(self._limit(link.owner, declared.id, chains))
        usable = min(limits) if len(limits) == len(stream.links) else 0
        if any(own > max(below, usable) for own in by_level[first:]):
            # One bit stands for all stores of a level: what another could still serve is cut with it.
            own_too = any(
                name not in stream.links and layout.tiers.index(stream.state.holders[name].tier) >= first
                for name, _ in layout.bits_of
            )
            self.withheld = self.withheld or own_too or max(limits, default=0) > usable
        for level in range(first, len(by_level)):
            by_level[level] = max(below, min(by_level[level], usable))
        self.lenders.extend(consulted)
        return tuple(consulted)

    def _simple(self, stream: StreamView, layout: Layout, declared: ProfileState) -> Reach | Problem | None:
        """`_reach` for the most frequent stream: one full-attention group on one tier."""
        size = layout.block_sizes[0]
        chain = self.chain(declared.id, size)
        if not isinstance(chain, Chain):
            return chain
        leading = chain.leading.get(layout.all_bits, 0)
        doubted = False
        if leading < len(chain.ids):
            block, copies = chain.ids[leading], stream.state.copies
            for where in layout.bits_of:
                if _doubtful(copies[where].get(block) if where in copies else None):
                    doubted = leading * size < self._limit(stream, declared.id, {size: chain})
        held = leading * size
        if self._ordered and held:
            held = min(held, self._limit(stream, declared.id, {size: chain}))
        first = layout.levels
        tokens = (held * (first[0] == 0), held * (first[1] == 0), held * (first[2] == 0), held)
        return Reach(tokens, size, not declared.missing, None, (), doubted)

    def _may_go_on(
        self, stream: StreamView, layout: Layout, profile: ProfileId, chains: dict[int, Chain]
    ) -> bool:
        """Whether a block that ends the match, in some group and tier, is one of which nobody knows whether it is
        still there. A block that a deletion hides ends no match."""
        for group in layout.groups:
            chain = chains[group.block_tokens]
            ids = chain.ids
            # With a window or recurrent state a match may end anywhere.
            ends: Iterable[int] = range(len(ids))
            if group.kind is GroupKind.FULL:
                ends = {chain.leading.get(bit, 0) for bit in layout.all_bits_of(group.index)}
            tables = [stream.table(where) for where in layout.bits_of if where[1] == group.index]
            doubted = [
                at for at in ends if at < len(ids) and any(_doubtful(table.get(ids[at])) for table in tables)
            ]
            size = group.block_tokens
            if doubted and min(doubted) * size < self._limit(stream, profile, {size: chain}):
                return True
        return False

    def _level(self, layout: Layout, level: int, chains: dict[int, Chain], limit: int) -> int:
        if layout.plain:
            group = layout.groups[0]
            leading = chains[group.block_tokens].leading.get(layout.bits[group.index, level], 0)
            return min(leading * group.block_tokens, limit)
        reaches = [
            self._group_reach(group, layout.bits[group.index, level], chains[group.block_tokens])
            for group in layout.groups
        ]
        return longest(reaches, limit)

    def _group_reach(self, group: GroupState, bit: int, chain: Chain) -> GroupReach:
        if group.kind is GroupKind.FULL:
            return GroupReach(group.kind, group.block_tokens, None, chain.leading.get(bit, 0))
        held = self._view.index.resident_run(chain.ids, bit)
        return GroupReach(group.kind, group.block_tokens, group.window, held=held)

    def chain(self, profile: ProfileId, block_tokens: int) -> Chain | Problem | None:
        """The question's blocks under a profile, hashed once; None above the limit of chains."""
        known = self._chains.get((profile, block_tokens))
        if known is not None:
            return known
        query, limits = self._query, self._view.limits
        ids: Sequence[bytes]
        if query.ids is not None:
            ids = query.ids
        else:
            tokens = query.tokens or b""
            blocks = len(tokens) // (4 * block_tokens)
            if blocks > limits.max_blocks:
                return too_many_blocks(self._view, blocks)
            if len(self._chains) >= limits.max_chains:
                return None
            ids = self._keys.hasher().chain(root_parent(profile), tokens, block_tokens)
        chain = Chain(ids, self._view.index.match(ids, self._live), {CLEAR: len(ids)})
        self._chains[profile, block_tokens] = chain
        return chain

    def _limit(self, stream: StreamView, profile: ProfileId, chains: dict[int, Chain]) -> int:
        """Tokens that no open deletion hides on this stream."""
        veil = CLEAR
        if self._ordered:
            opened = stream.open_orders(self._keys)
            veil = self._view.veils.veil(self._query.domain, opened, self._orders, stream.state.standings)
        limit: int | None = None
        for size, chain in chains.items():
            visible = chain.visible.get(veil)
            if visible is None:
                visible = chain.visible[veil] = veil.visible(chain.ids, profile)
            limit = visible * size if limit is None else min(limit, visible * size)
        return limit or 0


def _doubtful(copy: Copy | None) -> bool:
    return copy is not None and copy[1].state is CopyState.UNCERTAIN
