"""Domain secrets and the keys derived from them; the secrets stay in the ring, logs never see them.

A ring is a JSON file `{"domains": {name: 64 hex characters}}`, readable by its owner only. Destroying a
domain's secret in every ring makes all its ids in the log unlinkable (crypto-shredding).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from events.chain import alias
from events.errors import IdentityError
from events.identity import BlockHasher, salt_domain, salt_holds
from events.ids import Alias


def _derive(secret: bytes, label: str) -> bytes:
    return HKDFExpand(algorithm=SHA256(), length=32, info=f"kvledger {label} v1".encode()).derive(secret)


@dataclass(frozen=True, slots=True, repr=False)
class DomainKeys:
    """One domain's keys, each under its own HKDF label (RFC 5869). `id_key` is what a router of this domain
    is given to hash prompts with (its lookup key); it reveals neither salts nor aliases."""

    domain: str
    id_key: bytes
    salt_key: bytes
    alias_key: bytes

    @classmethod
    def from_secret(cls, domain: str, secret: bytes) -> DomainKeys:
        if len(secret) != 32:
            raise IdentityError(f"the secret of domain {domain} is not 32 bytes")
        return cls(domain, _derive(secret, "id"), _derive(secret, "salt"), _derive(secret, "alias"))

    def hasher(self) -> BlockHasher:
        return BlockHasher(self.id_key)

    def alias(self, worker: str, rank: int, epoch_no: int) -> Alias:
        return alias(self.alias_key, worker, rank, epoch_no)

    def __repr__(self) -> str:
        return f"DomainKeys({self.domain})"


class KeyRing(Mapping[str, DomainKeys]):
    """Read-only mapping of domain name to keys; missing domains raise KeyError like any mapping."""

    def __init__(self, secrets: Mapping[str, bytes]) -> None:
        self._keys = {name: DomainKeys.from_secret(name, secret) for name, secret in secrets.items()}

    def __getitem__(self, domain: str) -> DomainKeys:
        return self._keys[domain]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def domain_of_salt(self, salt: str) -> str | None:
        """The domain whose MAC the salt carries; None (the copies are `unassigned`) for any other salt."""
        domain = salt_domain(salt)
        if domain is None or domain not in self._keys:
            return None
        return domain if salt_holds(self._keys[domain].salt_key, salt) else None

    def domain_of_alias(self, name: bytes, worker: str, rank: int, epoch_no: int) -> str | None:
        """The domain behind a stream's alias; None if its keys are not in this ring."""
        return self.aliases(worker, rank, epoch_no).get(name)

    def aliases(self, worker: str, rank: int, epoch_no: int) -> Mapping[bytes, str]:
        """alias -> domain for one stream epoch, over all domains of the ring; remembered."""
        return _aliases(self, worker, rank, epoch_no)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


@lru_cache(maxsize=65_536)
def _aliases(ring: KeyRing, worker: str, rank: int, epoch_no: int) -> Mapping[bytes, str]:
    return {keys.alias(worker, rank, epoch_no): name for name, keys in ring.items()}


def load_keyring(path: Path) -> KeyRing:
    """Reads a ring; raises IdentityError, naming the file and the domain but never a secret."""
    try:
        document = json.loads(path.read_text())
        secrets = {str(name): bytes.fromhex(secret) for name, secret in document["domains"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IdentityError(f"key ring {path} cannot be read: {type(error).__name__}") from error
    return KeyRing(secrets)


def with_domain(document: str, domain: str, secret: bytes) -> str:
    """The ring's JSON text with one more domain; an existing one keeps its secret."""
    ring = json.loads(document) if document.strip() else {"domains": {}}
    ring["domains"].setdefault(domain, secret.hex())
    return json.dumps(ring, indent=1, sort_keys=True) + "\n"
