"""What open deletions hide: per stream and domain the orders not discharged there, kept up to date by change.

An order costs a stream work when it is given and when the stream's standing to it changes, a lookup only while
it is open. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from events.fold.registry import Registry
from events.fold.registry_state import Deletion
from events.fold.state import Standing
from events.model.control import ProfileScope
from events.scope import is_whole_domain, scoped_ids, scoped_profiles

MAX_VEILS = 4_096
"""Different sets of open orders kept, so that streams with equal ones share the work of a lookup."""


@dataclass(frozen=True, slots=True, eq=False)
class Veil:
    """One set of open orders of a domain; equal sets are one object as long as they are kept."""

    whole: bool = False
    profiles: frozenset[str] = frozenset()
    ids: frozenset[bytes] = frozenset()

    def visible(self, chain: Sequence[bytes], profile: str) -> int:
        """Leading blocks of the chain before the first one that any of the orders covers."""
        if self.whole or profile in self.profiles:
            return 0
        if self.ids.isdisjoint(chain):
            return len(chain)
        return next(depth for depth, block in enumerate(chain) if block in self.ids)


CLEAR = Veil()
"""Nothing is hidden."""


@dataclass(slots=True)
class OpenOrders:
    """One stream's open orders in one domain. `taken`: how many of each list of the domain's orders are in."""

    alias: bytes
    taken: tuple[int, ...] = ()
    numbers: set[int] = field(default_factory=set)
    veil: Veil | None = CLEAR


@dataclass(slots=True)
class VeilBook:
    """Makes veils for all streams of a view. Feed it from one thread."""

    registry: Registry
    _made: dict[tuple[str, frozenset[int]], Veil] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._made)

    def lists(self, domain: str) -> tuple[list[Deletion], ...]:
        """The lists that a domain's orders are in; they only grow."""
        return self.registry.order_lists(domain)

    def veil(
        self,
        domain: str,
        opened: OpenOrders,
        lists: tuple[list[Deletion], ...],
        standings: Mapping[tuple[bytes, int], Standing],
    ) -> Veil:
        """What is hidden now. Costs nothing where neither orders nor standings changed since."""
        marks = tuple([len(each) for each in lists])
        if opened.taken != marks:
            for at, orders in enumerate(lists):
                begin = opened.taken[at] if opened.taken else 0
                for order in orders[begin:]:
                    standing = standings.get((opened.alias, order.number))
                    if standing is None or not standing.discharged:
                        opened.numbers.add(order.number)
                        opened.veil = None
            opened.taken = marks
        if opened.veil is None:
            opened.veil = self._make(domain, frozenset(opened.numbers))
        return opened.veil

    def _make(self, domain: str, numbers: frozenset[int]) -> Veil:
        if not numbers:
            return CLEAR
        known = self._made.get((domain, numbers))
        if known is not None:
            return known
        whole, profiles, ids = False, set[str](), set[bytes]()
        for number in numbers:
            scope = self.registry.deletions[number].scope
            if isinstance(scope, ProfileScope):
                profiles |= scoped_profiles(scope)
            elif is_whole_domain(scope, domain):
                whole = True
            else:
                ids |= scoped_ids(scope)
        if len(self._made) >= MAX_VEILS:
            self._made.clear()
        made = Veil(whole, frozenset(profiles), frozenset(ids))
        self._made[domain, numbers] = made
        return made
