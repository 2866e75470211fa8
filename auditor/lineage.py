"""Which blocks a request covers, descendants included, with «can't be told» kept apart from yes and no."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from events.ids import ROOT_PARENT
from events.model.control import ProfileScope, Scope
from events.scope import is_whole_domain, scoped_ids, scoped_profiles


class Covered(StrEnum):
    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


@dataclass(slots=True)
class Ancestry:
    """Parents of one domain's blocks, learnt from every stream: an id has one parent, wherever it lies."""

    parents: dict[bytes, bytes] = field(default_factory=dict)
    torn: set[bytes] = field(default_factory=set)

    def learn(self, block: bytes, parent: bytes) -> None:
        """Two parents for one id contradict each other: then nothing below it can be told."""
        if self.parents.setdefault(block, parent) != parent:
            self.torn.add(block)

    def below(self, block: bytes, tops: frozenset[bytes]) -> Covered:
        """Whether `block` is one of `tops` or descends from one."""
        passed: set[bytes] = set()
        while block not in tops:
            if block == ROOT_PARENT:
                return Covered.NO
            parent = self.parents.get(block)
            if parent is None or block in self.torn or block in passed:
                return Covered.UNDECIDED
            passed.add(block)
            block = parent
        return Covered.YES


def covers(
    scope: Scope,
    domain: str,
    lineage: Ancestry,
    block: bytes,
    profile: str | None,
    unnamed: frozenset[bytes] = frozenset(),
) -> Covered:
    """Whether a block of a `domain` that the scope reaches is in scope; `profile` None: never declared. What is
    not in scope and at or below an `unnamed` leaf, one that is the subject's too, can't be told."""
    if is_whole_domain(scope, domain):
        return Covered.YES
    if isinstance(scope, ProfileScope):
        if profile is None:
            return Covered.UNDECIDED
        return Covered.YES if profile in scoped_profiles(scope) else Covered.NO
    found = lineage.below(block, scoped_ids(scope))
    if found is Covered.NO and unnamed and lineage.below(block, unnamed) is Covered.YES:
        return Covered.UNDECIDED
    return found
