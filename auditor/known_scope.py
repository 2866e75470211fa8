"""What a request covers, as far as it is known by now: which domains, under which aliases, and which blocks in them.

`request.scope` says it by names, prefixes and tenants. Which domains those are is what `kv.control` says, which blocks
descend from which, what the streams told, and which leaves are a subject's, what `kv.subjects` binds.
"""

from __future__ import annotations

from collections.abc import Mapping

from auditor.lineage import Ancestry, Covered, covers
from auditor.registry import ControlFold, RequestRead
from events.chain import alias
from events.model.control import ProfileScope
from events.scope import covers_domain, is_whole_domain, scoped_ids

MOST_AHEAD = 64
"""Streams whose aliases are remembered before any record of theirs was fed."""
NOBODYS = Ancestry()
"""Of a domain of which no block was ever shown."""


class KnownScope:
    """`alias_keys` maps every domain that may be in scope to its alias key. `domains` are those that the streams were
    read for. `bound` is set by whoever has read `kv.subjects` for a subject's request: every leaf that is bound to the
    subject by now; with it `cut`, at which offset that topic begins, and `missing`, how many offsets behind that nobody
    could read."""

    def __init__(self, request: RequestRead, registry: ControlFold, alias_keys: Mapping[str, bytes]) -> None:
        self.request = request
        self.alias_keys = dict(alias_keys)
        self.lineages: dict[str, Ancestry] = {}
        self.bound: frozenset[bytes] | None = None
        self.cut = 0
        self.missing = 0
        self.everywhere = isinstance(request.scope, ProfileScope)
        """Whether the scope reaches every domain, those without a known name too."""
        self._registry = registry
        self._named = scoped_ids(request.scope)
        self._bound: frozenset[bytes] | None = None
        self._unnamed = frozenset[bytes]()
        self._ahead: dict[tuple[str, int, int], dict[bytes, str]] = {}
        self.domains = self._reached()

    @property
    def unnamed(self) -> frozenset[bytes]:
        """Leaves of the subject that the request doesn't name: they were bound too late for it."""
        if self._bound is not self.bound:
            self._bound, self._unnamed = self.bound, (self.bound or frozenset()) - self._named
        return self._unnamed

    def stale(self) -> bool:
        """Whether the scope reaches other domains, as the registry stands now, than the streams were read for: then
        the log has to be read again."""
        return self._reached() != self.domains

    def covers(self, domain: str, block: bytes, profile: str | None) -> Covered:
        """Whether a block of a domain in scope is in scope."""
        lineage = self.lineage(domain)
        return covers(self.request.scope, domain, lineage, block, profile, self._named, self.unnamed)

    def lineage(self, domain: str) -> Ancestry:
        """What is known by now of whose child each block of a domain is; only to be read."""
        return self.lineages.get(domain, NOBODYS)

    def reaches_all(self, domain: str) -> bool:
        """Whether everything of a domain that the scope reaches is in scope, whatever is told of it."""
        return not self.everywhere and is_whole_domain(self.request.scope, domain)

    def learn(self, domain: str, block: bytes, parent: bytes) -> None:
        """Whose child a block is, as a signed record tells it."""
        lineage = self.lineages.get(domain)
        if lineage is None:
            lineage = self.lineages[domain] = Ancestry()
        lineage.learn(block, parent)

    def aliases(self, worker: str, rank: int, epoch_no: int) -> dict[bytes, str]:
        """alias -> domain in scope, for one stream, in the domains' order: whoever judges the log again gives the same
        reasons in the same order."""
        return {
            alias(self.alias_keys[domain], worker, rank, epoch_no): domain
            for domain in sorted(self.domains)
            if domain in self.alias_keys
        }

    def aliases_ahead(self, worker: str, rank: int, epoch_no: int) -> dict[bytes, str]:
        """`aliases`, remembered: a key is derived for each domain, and records are read some way ahead of the one that
        begins their stream."""
        where = worker, rank, epoch_no
        known = self._ahead.get(where)
        if known is None:
            if len(self._ahead) >= MOST_AHEAD:
                self._ahead.clear()
            known = self._ahead[where] = self.aliases(*where)
        return known

    def _reached(self) -> frozenset[str]:
        scope, registry = self.request.scope, self._registry
        known = set(registry.domains) | set(self.alias_keys)
        return frozenset(d for d in known if covers_domain(scope, d, registry.domains.get(d)))
