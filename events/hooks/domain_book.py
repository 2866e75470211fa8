"""Which domain and profile a prompt belongs to: salts, adapters, and the profiles of each domain. Pure.

Salts are read here and kept nowhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from events.hooks.engine_config import EngineConfig
from events.identity import BlockHasher, profile_digest, root_parent
from events.ids import ProfileId
from events.keyring import KeyRing
from events.model.part import ProfileDeclared

BoundSalts = Callable[[], Mapping[bytes, str]]
"""Gateways' own salts: HMAC under a domain's salt key -> that domain (`events.fold.registry_state`)."""

_SALTS_REMEMBERED = 4_096
_MAX_ADAPTER_CHARS = 200


@dataclass(slots=True, eq=False)
class Chain:
    """What all blocks of a prompt share: domain, adapter, block size, and so their profile and hash key."""

    domain: str
    number: int
    profile: ProfileId
    declaration: ProfileDeclared
    adapter: str | None
    block_tokens: int
    hasher: BlockHasher
    root: bytes
    declared: bool = False


class DomainBook:
    """Domains of salts, and the profiles of each domain by number."""

    def __init__(self, keyring: KeyRing, config: EngineConfig, bound_salts: BoundSalts) -> None:
        self._keyring = keyring
        self._config = config
        self._bound_salts = bound_salts
        self._bound: dict[bytes, str | None] = {}
        self._bound_count = -1
        self._chains: dict[tuple[str, str | None, int], Chain] = {}
        self._numbers: dict[str, int] = {}
        self.refused = 0

    def clear(self) -> None:
        """Forget all profiles: a new engine life numbers its own."""
        self._chains.clear()
        self._numbers.clear()

    def declare_again(self) -> None:
        """A new epoch has been told nothing."""
        for chain in self._chains.values():
            chain.declared = False

    def chains(self) -> Iterable[Chain]:
        """All in use, in the order in which they were numbered."""
        return self._chains.values()

    def retire(self) -> frozenset[str]:
        """Forgets the domains that are no longer in the key ring, and returns them."""
        used = {chain.domain for chain in self._chains.values()}
        gone = used.difference(self._keyring) if used else used
        for key in [key for key in self._chains if key[0] in gone]:
            del self._chains[key]
        return frozenset(gone)

    def drop(self, adapter: str | None) -> list[Chain]:
        """Forgets an adapter's profiles, or with None all, and returns them: what comes is of new ones."""
        gone = [chain for chain in self._chains.values() if adapter is None or chain.adapter == adapter]
        self._chains = {key: chain for key, chain in self._chains.items() if chain not in gone}
        return gone

    def keep(self, used: Collection[Chain]) -> None:
        """Forgets the profiles that nothing is held of; before `declare_again`, as a reader would miss them."""
        self._chains = {key: chain for key, chain in self._chains.items() if chain in used}

    def chain_of(self, salt: str | None, adapter: str | None, block_tokens: int) -> Chain | None:
        """The chain of a prompt that begins here; None if its salt is nobody's (or its adapter's name absurd),
        or if there are too many profiles already, which `refused` counts."""
        domain = self._config.default_domain if salt is None else self._domain_of(salt)
        if domain is None or (adapter is not None and len(adapter) > _MAX_ADAPTER_CHARS):
            return None
        chain = self._chains.get((domain, adapter, block_tokens))
        if chain is None and len(self._chains) >= self._config.profiles_kept:
            self.refused += 1
            return None
        return chain or self._new_chain(domain, adapter, block_tokens)

    def _domain_of(self, salt: str) -> str | None:
        domain = self._keyring.domain_of_salt(salt)
        return domain if domain is not None else self._domain_of_bound(salt)

    def _domain_of_bound(self, salt: str) -> str | None:
        bound = self._bound_salts()
        if not bound:
            return None
        if len(bound) != self._bound_count or len(self._bound) >= _SALTS_REMEMBERED:
            self._bound.clear()
            self._bound_count = len(bound)
        remembered = hashlib.sha256(salt.encode()).digest()
        if remembered not in self._bound:
            self._bound[remembered] = self._keyring.domain_of_bound(bound, salt)
        return self._bound[remembered]

    def _new_chain(self, domain: str, adapter: str | None, block_tokens: int) -> Chain | None:
        keys = self._keyring.get(domain)
        if keys is None:
            return None
        config = self._config
        content = config.content.model_copy(
            update={
                "adapter": adapter,
                "adapter_revision": None if adapter is None else config.adapter_revisions.get(adapter),
                "block_tokens": block_tokens,
            }
        )
        number = self._numbers.get(domain, 0)
        self._numbers[domain] = number + 1
        profile = profile_digest(content)
        declaration = ProfileDeclared(
            profile=number, content=content, layout=config.layout, block_bytes=config.block_bytes
        )
        chain = Chain(
            domain,
            number,
            profile,
            declaration,
            adapter,
            block_tokens,
            keys.hasher(),
            root_parent(profile),
        )
        self._chains[domain, adapter, block_tokens] = chain
        return chain
