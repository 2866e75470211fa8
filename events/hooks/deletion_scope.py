"""Which of an engine's copies a deletion request reaches, and which of them are old. Pure.

What has no id can't be judged, so it is in every request's scope.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from events.hooks.engine_event import EngineHash
from events.hooks.engine_identity import Node
from events.hooks.inventory import Table
from events.model.control import Scope
from events.model.part import RequestStanding
from events.scope import is_whole_domain, scoped_ids, scoped_profiles


@dataclass(frozen=True, slots=True)
class ScopedCopy:
    """One engine hash in one holder and group. `domain` and `block` None: without id, `unassigned` if its
    salt is nobody's, else an orphan. `computed`: by this engine, in this life."""

    hash: EngineHash
    holder: str
    group: int
    domain: str | None
    block: bytes | None
    admitted_after: int | None
    computed: bool
    unassigned: bool = False


def is_old(
    admitted_after: int | None, request: int, *, computed: bool = False, barrier: bool = False
) -> bool:
    """Whether a copy is from before the request was installed; unknown provenance is older than all.

    `barrier`: the engine's own memory was emptied, or born, after the request was installed. What was
    `computed` in it is new work then, whatever its prompt; what came from elsewhere is as old as its
    provenance says, and must not stay.
    """
    if barrier and computed:
        return False
    return admitted_after is None or admitted_after < request


def copies_in_scope(tables: Iterable[Table], scope: Scope, domains: Iterable[str]) -> Iterator[ScopedCopy]:
    """Copies of the covered `domains` that the scope reaches, descendants included, and all without id."""
    covered = frozenset(domains)
    targets = scoped_ids(scope)
    whole = {domain for domain in covered if is_whole_domain(scope, domain)}
    profiles = scoped_profiles(scope)
    below: dict[bytes, bool] = {}
    for table in tables:
        holder, group = table.holder.name, table.index
        for copy in table.copies.values():
            chain = copy.node.chain
            if chain is None or chain.domain not in covered:
                continue
            if chain.domain not in whole:
                reached = chain.profile in profiles if profiles else _below(copy.node, targets, below)
                if not reached:
                    continue
            for node in copy.nodes():
                yield ScopedCopy(
                    node.hash, holder, group, chain.domain, node.block, copy.admitted_after, copy.computed
                )
        for copy in table.nameless.values():
            node = copy.node
            yield ScopedCopy(
                node.hash, holder, group, None, None, copy.admitted_after, copy.computed, node.unassigned
            )


def standings(
    request: int, old_copies: Iterable[ScopedCopy], domains: Iterable[str], removed: Mapping[str, int]
) -> dict[str, RequestStanding]:
    """How the request stands in each covered domain; `removed` counts what was removed for it so far.

    A copy counts once, whatever the number of its hashes. Those without id count in every domain.
    """
    old: dict[str, set[tuple[str, int, bytes]]] = {domain: set() for domain in domains}
    orphans = unassigned = 0
    for copy in old_copies:
        if copy.domain is not None and copy.block is not None:
            old[copy.domain].add((copy.holder, copy.group, copy.block))
        elif copy.unassigned:
            unassigned += 1
        else:
            orphans += 1
    return {
        domain: RequestStanding(
            request=request,
            removed=removed.get(domain, 0),
            old_left=len(blocks),
            orphans=orphans,
            unassigned=unassigned,
        )
        for domain, blocks in old.items()
    }


def _below(node: Node, targets: frozenset[bytes], known: dict[bytes, bool]) -> bool:
    """Whether the block or one before it is a target; `known` remembers the answer for all on the way."""
    path: list[bytes] = []
    at: Node | None = node
    found = False
    while at is not None:
        remembered = known.get(at.block)
        if remembered is not None:
            found = remembered
            break
        path.append(at.block)
        if at.block in targets:
            found = True
            break
        at = at.parent
    for block in path:
        known[block] = found
    return found
