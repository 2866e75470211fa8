"""Which blocks a request covers, descendants included, with «can't be told» kept apart from yes and no."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from events.ids import ROOT_PARENT
from events.model.control import ProfileScope, Scope
from events.model.part import BlockStored, CopyRun, DomainEvent, SnapshotPart, TransferStarted
from events.scope import is_whole_domain, scoped_profiles


class Covered(StrEnum):
    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


@dataclass(slots=True)
class Ancestry:
    """Parents of one domain's blocks, learnt from every stream: an id has one parent, wherever it lies."""

    parents: dict[bytes, bytes] = field(default_factory=dict)
    torn: set[bytes] = field(default_factory=set)
    _jumps: dict[frozenset[bytes], dict[bytes, bytes]] = field(default_factory=dict)
    """For each set of tops: how far up a block's chain has been followed, so that no chain is walked twice."""

    def learn(self, block: bytes, parent: bytes) -> None:
        """Two parents for one id contradict each other: then nothing below it can be told."""
        if self.parents.setdefault(block, parent) != parent:
            self.torn.add(block)
            self._jumps.clear()

    def below(self, block: bytes, tops: frozenset[bytes]) -> Covered:
        """Whether `block` is one of `tops` or descends from one."""
        jumps = self._jumps.setdefault(tops, {})
        passed: set[bytes] = set()
        while block not in tops and block != ROOT_PARENT:
            onward = jumps.get(block)
            if onward is None and block not in self.torn:
                onward = self.parents.get(block)
            if onward is None:
                break
            if block in passed:
                return Covered.UNDECIDED
            passed.add(block)
            block = onward
        jumps.update(dict.fromkeys(passed, block))
        if block in tops:
            return Covered.YES
        return Covered.NO if block == ROOT_PARENT else Covered.UNDECIDED


def covers(
    scope: Scope,
    domain: str,
    lineage: Ancestry,
    block: bytes,
    profile: str | None,
    named: frozenset[bytes],
    unnamed: frozenset[bytes],
) -> Covered:
    """Whether a block of a `domain` that the scope reaches is in scope; `profile` None: never declared. `named` are
    the scope's ids. What is not in scope and at or below an `unnamed` leaf, one that is the subject's too, can't be
    told."""
    if is_whole_domain(scope, domain):
        return Covered.YES
    if isinstance(scope, ProfileScope):
        if profile is None:
            return Covered.UNDECIDED
        return Covered.YES if profile in scoped_profiles(scope) else Covered.NO
    found = lineage.below(block, named)
    if found is Covered.NO and unnamed and lineage.below(block, unnamed) is Covered.YES:
        return Covered.UNDECIDED
    return found


def links(event: DomainEvent) -> list[tuple[bytes, bytes]]:
    """(block, parent) of everything that the event says is or will be held."""
    if isinstance(event, BlockStored | TransferStarted):
        before = [event.parent or bytes(16), *event.ids[:-1]]
        return list(zip(event.ids, before, strict=True)) if event.ids else []
    if isinstance(event, SnapshotPart):
        return [link for run in event.runs for link in _run_links(run)]
    return []


def _run_links(run: CopyRun) -> list[tuple[bytes, bytes]]:
    return list(zip(run.ids, run.parents, strict=True))
