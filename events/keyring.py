"""Domain secrets and the keys derived from them; the secrets stay in the ring, logs never see them.

A ring is a JSON file `{"domains": {name: 64 hex characters}}`, readable by its owner only. Destroying a
domain's secret in every ring makes all its ids in the log unlinkable (crypto-shredding).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from events.chain import alias
from events.errors import IdentityError
from events.identity import BlockHasher, bound_salt_hmac, salt_domain, salt_holds
from events.ids import Alias

REMEMBERED_STREAMS = 65_536


def storage_key_id(name: str) -> bytes:
    """What the log calls the key under which a store keeps its blocks: 16 bytes of a hash of the `name` that it has
    in its ring or secret manager. Such a key is never a domain's secret: an auditor needs that one's alias key."""
    return hashlib.sha256(b"kvledger storage key v1|" + name.encode()).digest()[:16]


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
    subject_key: bytes

    @classmethod
    def from_secret(cls, domain: str, secret: bytes) -> DomainKeys:
        if len(secret) != 32:
            raise IdentityError(f"the secret of domain {domain} is not 32 bytes")
        return cls(domain, *(_derive(secret, label) for label in ("id", "salt", "alias", "subject")))

    def hasher(self) -> BlockHasher:
        return BlockHasher(self.id_key)

    def alias(self, worker: str, rank: int, epoch_no: int) -> Alias:
        return alias(self.alias_key, worker, rank, epoch_no)

    def pseudonym(self, subject: str) -> bytes:
        """The name of a data subject in `kv.subjects`: BLAKE2b, 32 bytes, under a key of its own (RFC 7693)."""
        return hashlib.blake2b(subject.encode(), key=self.subject_key, digest_size=32).digest()

    def __repr__(self) -> str:
        return f"DomainKeys({self.domain})"


class KeyRing(Mapping[str, DomainKeys]):
    """Read-only mapping of domain name to keys; missing domains raise KeyError like any mapping."""

    def __init__(self, secrets: Mapping[str, bytes]) -> None:
        self._keys = {name: DomainKeys.from_secret(name, secret) for name, secret in secrets.items()}
        self._aliases: dict[tuple[str, int, int], Mapping[bytes, str]] = {}

    def refresh(self) -> None:
        """Takes up changes of what the ring was read from; nothing here, see `FileKeyRing`."""

    def __getitem__(self, domain: str) -> DomainKeys:
        self.refresh()
        return self._keys[domain]

    def __iter__(self) -> Iterator[str]:
        self.refresh()
        return iter(self._keys)

    def __len__(self) -> int:
        self.refresh()
        return len(self._keys)

    def domain_of_salt(self, salt: str) -> str | None:
        """The domain whose MAC the salt carries; None (the copies are `unassigned`) for any other salt."""
        domain = salt_domain(salt)
        if domain is None or domain not in self:
            return None
        return domain if salt_holds(self._keys[domain].salt_key, salt) else None

    def domain_of_bound(self, bound: Mapping[bytes, str], salt: str) -> str | None:
        """The domain that a gateway's own salt is bound to, by HMAC as `salt_bound` records have it; None if it
        is bound to none whose keys are here."""
        for domain in sorted(set(bound.values())):
            keys = self.get(domain)
            if keys is not None and bound.get(bound_salt_hmac(keys.salt_key, salt)) == domain:
                return domain
        return None

    def domain_of_alias(self, name: bytes, worker: str, rank: int, epoch_no: int) -> str | None:
        """The domain behind a stream's alias; None if its keys are not in this ring."""
        return self.aliases(worker, rank, epoch_no).get(name)

    def aliases(self, worker: str, rank: int, epoch_no: int) -> Mapping[bytes, str]:
        """alias -> domain for one stream epoch, over all domains of the ring; remembered."""
        self.refresh()
        stream = (worker, rank, epoch_no)
        found = self._aliases.get(stream)
        if found is None:
            if len(self._aliases) >= REMEMBERED_STREAMS:
                self._aliases.clear()
            found = {keys.alias(*stream): name for name, keys in self._keys.items()}
            self._aliases[stream] = found
        return found


class FileKeyRing(KeyRing):
    """A ring that follows its file: a domain added or destroyed while a process runs counts at once.

    A file that can't be read for a moment leaves the ring as it was.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(_read_secrets(path))
        self._path = path
        self._seen = self._stamp()

    def refresh(self) -> None:
        stamp = self._stamp()
        if stamp == self._seen or stamp is None:
            return
        try:
            secrets = _read_secrets(self._path)
        except IdentityError:
            return
        self._seen = stamp
        self._keys = {name: DomainKeys.from_secret(name, secret) for name, secret in secrets.items()}
        self._aliases = {}

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _read_secrets(path: Path) -> dict[str, bytes]:
    try:
        document = json.loads(path.read_text())
        return {str(name): bytes.fromhex(secret) for name, secret in document["domains"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IdentityError(f"key ring {path} cannot be read: {type(error).__name__}") from error


def load_keyring(path: Path) -> KeyRing:
    """A ring that follows its file; raises IdentityError, naming the file and never a secret."""
    return FileKeyRing(path)


def with_domain(document: str, domain: str, secret: bytes) -> str:
    """The ring's JSON text with one more domain; an existing one keeps its secret."""
    ring = json.loads(document) if document.strip() else {"domains": {}}
    ring["domains"].setdefault(domain, secret.hex())
    return json.dumps(ring, indent=1, sort_keys=True) + "\n"
