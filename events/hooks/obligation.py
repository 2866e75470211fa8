"""What a hook owes to the deletions and invalidations of the log, and how each stands. Pure.

The registry holds the orders; this keeps what one engine life has done about them. An order's domains are
those of the key ring that its scope covers: the hook can name no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from events.fold.registry import Registry
from events.fold.registry_state import Deletion
from events.hooks.engine_port import RefusalReason
from events.ids import InvalidateReason
from events.model.control import InvalidationRequested, ProfileScope, TenantScope
from events.model.part import Ack, DomainEvent, Refused, RequestStanding
from events.scope import covers_domain

MAX_COUNT = (1 << 63) - 1


@dataclass(slots=True)
class Obligation:
    """One order in this engine life. `removed` counts by domain; `discharged` may fall back to False when
    an old copy lands late; `told` is what acks of this epoch last said of that. `barrier`: the engine's own
    memory was emptied, or born, after the order was installed."""

    deletion: Deletion
    removed: Counter[str] = field(default_factory=Counter)
    barrier: bool = False
    discharged: bool = False
    told: bool | None = None
    refused: RefusalReason | None = None
    cure: str = ""

    @property
    def number(self) -> int:
        return self.deletion.number

    @property
    def reason(self) -> InvalidateReason:
        body = self.deletion.body
        if isinstance(body, InvalidationRequested):
            return InvalidateReason(body.reason)
        return InvalidateReason.DELETION


class Obligations:
    """All orders installed so far, for one engine life at a time. `domains`, the key ring's, may grow.
    `renewed`: how they stand was decided anew, acks are due."""

    def __init__(self, registry: Registry, domains: Collection[str]) -> None:
        self.renewed = False
        self._registry = registry
        self._domains = domains
        self._known: dict[int, Obligation] = {}
        self._answered: set[int] = set()
        self._named: dict[str, int] = {}

    def installed(self) -> list[Obligation]:
        """Every order of the registry, oldest first; new ones are taken up."""
        for number, deletion in self._registry.deletions.items():
            if number not in self._known:
                self._known[number] = Obligation(deletion)
        return list(self._known.values())

    def open(self) -> list[Obligation]:
        """Orders to be carried out now: neither discharged, nor refused for good, nor under a legal hold."""
        return [
            one
            for one in self.installed()
            if not one.discharged and one.refused != "no_delete_path" and not self.held(one)
        ]

    def held(self, obligation: Obligation) -> bool:
        return any(self._registry.held(domain) for domain in self.domains(obligation))

    def domains(self, obligation: Obligation) -> list[str]:
        """Domains of the key ring that the order covers, as the registry stands now."""
        scope = obligation.deletion.scope
        return [
            domain for domain in self._domains if covers_domain(scope, domain, self._registry.owner(domain))
        ]

    def tenants(self, obligation: Obligation) -> set[str]:
        """Who asked for a deletion, by what it covers; nobody for an invalidation or one over all tenants."""
        scope = obligation.deletion.scope
        if not obligation.deletion.proves or isinstance(scope, ProfileScope):
            return set()
        if isinstance(scope, TenantScope):
            return {scope.tenant}
        owner = self._registry.owner(scope.domain)
        return set() if owner is None else {owner}

    def newest_covering(self, domain: str) -> int:
        """Number of the newest order that can cover the domain; -1 if there is none."""
        covering = self._registry.deletions_of(domain) if self._registry.deletions else []
        return covering[-1].number if covering else -1

    def new_life(self, installed_before_birth: int) -> None:
        """The engine's memory began empty, after the order at that offset was installed: all orders up to it
        are discharged with nothing left, the later ones are owed by this life."""
        self._known.clear()
        self.renewed = True
        for one in self.installed():
            one.discharged = one.barrier = one.number <= installed_before_birth

    def discharged(self) -> list[int]:
        """Numbers of the orders that this engine life has discharged, for a process that comes after this."""
        return [one.number for one in self.installed() if one.discharged]

    def restore(self, discharged: Iterable[int]) -> None:
        """What an earlier process discharged in this same engine life stays discharged."""
        numbers = set(discharged)
        for one in self.installed():
            if one.number in numbers:
                one.discharged = one.barrier = True

    def suspect(self, domains: Set[str]) -> list[Obligation]:
        """A copy that may be old landed in these domains: their discharged orders are to be looked at again."""
        return [
            one for one in self.installed() if one.discharged and not domains.isdisjoint(self.domains(one))
        ]

    def acks(
        self,
        domains: Iterable[str],
        left: Callable[[Obligation], Mapping[str, RequestStanding]],
        orphans: int,
        unassigned: int,
        nonce: int | None = None,
    ) -> dict[str, Sequence[DomainEvent]]:
        """One ack for each domain, over all its orders; domains without one are left out. `left` counts what
        an order that isn't discharged finds now.

        Such an order is never listed with 0, which would discharge it: where no old copy is known, a request
        that still runs holds one, or nobody can look. Its refusal, if it has one, is repeated behind the ack.
        An ack takes the place of the one before for every order in it, so it goes on naming the highest nonce that was
        answered in its domain: an order that is asked about in the midst of another one stays answered.
        """
        wanted = set(domains)
        standings: dict[str, list[RequestStanding]] = {}
        refusals: dict[str, list[Refused]] = {}
        for one in self.installed():
            covered = [domain for domain in self.domains(one) if domain in wanted]
            counts = left(one) if covered and not one.discharged else {}
            one.told = one.discharged if covered else one.told
            for domain in covered:
                old_left = counts[domain].old_left if domain in counts else 0
                standings.setdefault(domain, []).append(
                    RequestStanding(
                        request=one.number,
                        removed=min(one.removed[domain], MAX_COUNT),
                        old_left=0 if one.discharged else max(1, old_left),
                        orphans=orphans,
                        unassigned=unassigned,
                    )
                )
                if one.refused is not None:
                    refused = Refused(request=one.number, reason=one.refused, cure=one.cure)
                    refusals.setdefault(domain, []).append(refused)
        return {
            domain: (
                Ack(requests=tuple(requests), nonce=self._naming(domain, nonce)),
                *refusals.get(domain, ()),
            )
            for domain, requests in standings.items()
        }

    def _naming(self, domain: str, nonce: int | None) -> int | None:
        named = (self._named.get(domain), nonce)
        return max((one for one in named if one is not None), default=None)

    def refusals(
        self, obligations: Iterable[Obligation], reason: RefusalReason, cure: str
    ) -> dict[str, Sequence[DomainEvent]]:
        """Marks orders as refused; events only for those whose reason or cure is new."""
        found: dict[str, list[DomainEvent]] = {}
        for one in obligations:
            if (one.refused, one.cure) == (reason, cure):
                continue
            one.refused, one.cure = reason, cure
            for domain in self.domains(one):
                found.setdefault(domain, []).append(Refused(request=one.number, reason=reason, cure=cure))
        return dict(found)

    def nonces(self) -> list[tuple[int, Obligation]]:
        """The newest audit nonce of each discharged order, unless answered in this epoch, as (offset, order)."""
        newest = {nonce.request: offset for offset, nonce in self._registry.nonces.items()}
        self._answered.intersection_update(newest.values())
        due: list[tuple[int, Obligation]] = []
        for request, offset in newest.items():
            obligation = self._known.get(request)
            if offset not in self._answered and obligation is not None and obligation.discharged:
                due.append((offset, obligation))
        return due

    def answered(self, offset: int) -> None:
        """That nonce needs no further ack in this epoch; later ones name it, or a higher one, too."""
        self._answered.add(offset)
        nonce = self._registry.nonces.get(offset)
        known = None if nonce is None else self._known.get(nonce.request)
        for domain in self.domains(known) if known is not None else ():
            self._named[domain] = max(offset, self._named.get(domain, offset))

    def new_epoch(self) -> None:
        """Acks, refusals and answers of the old epoch are nobody's any more."""
        self._answered.clear()
        self._named.clear()
        self.renewed = False
        for one in self.installed():
            one.refused = one.told = None
