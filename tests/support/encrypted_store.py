"""A durable store that outlived its owner, with what `kv.control` says of the keys that it encrypts under."""

from __future__ import annotations

from collections.abc import Collection

from auditor.finding import Verdict
from events.chain import store_alias
from events.ids import Role, Tier
from events.keyring import storage_key_id
from events.model.control import HolderEncrypted, HolderEnrolled, KeyDestroyed, KeyListed, RingNamed
from events.signing import Signer
from tests.support.audit_log import RING, AuditLog, HookStub

STORE = "disk-1"
KEYS: dict[str | None, str] = {"acme": "k-acme", "acme/eu": "k-eu", None: "k-rest"}


def encrypted(domain: str | None, key: str | None, store: str = STORE) -> HolderEncrypted:
    alias = None if domain is None else store_alias(RING[domain].alias_key, store)
    return HolderEncrypted(durable_id=store, alias=alias, key=None if key is None else storage_key_id(key))


def listed(key: str, *rings: str, attester: bytes | None = None) -> KeyListed:
    named = tuple(RingNamed(ring=ring, attester=attester) for ring in rings)
    return KeyListed(key=storage_key_id(key), rings=named)


def gone(key: str, ring: str) -> KeyDestroyed:
    return KeyDestroyed(key=storage_key_id(key), ring=ring, evidence="erased")


class EncryptedStore:
    """`w0` owned it, left an old copy of tenant acme in it, and its engine has ended; its other domain lies there
    under a key of its own, and what is in no domain under a third. Nothing is destroyed yet."""

    def __init__(
        self, *, declared: Collection[str | None] = tuple(KEYS), listed_in: tuple[str, ...] = ("a", "b")
    ) -> None:
        self.log = AuditLog()
        self.log.say(HolderEnrolled(durable_id=STORE, tier=Tier.DISK, owner="w0"), Role.ENROLMENT)
        for domain, key in KEYS.items():
            if domain in declared:
                self.declare(domain, key)
                if listed_in:
                    self.list_rings(key, *listed_in)
        self.hook = self.owner("w0")
        self.hook.store("acme", 1, holder="disk")
        self.request = self.log.delete()

    def owner(self, worker: str) -> HookStub:
        return self.log.hook(worker, life=f"{worker}-life").open(durable_id=STORE)

    def end(self) -> int:
        return self.log.attest(self.hook)

    def declare(self, domain: str | None, key: str | None) -> int:
        return self.log.say(encrypted(domain, key), Role.ENROLMENT)

    def list_rings(self, key: str, *rings: str, attester: bytes | None = None) -> int:
        return self.log.say(listed(key, *rings, attester=attester), Role.CONTROL)

    def destroy(self, key: str, ring: str, *, signer: Signer | None = None) -> int:
        return self.log.say(gone(key, ring), Role.SUPERVISOR, signer=signer)

    def destroy_all(self, *keys: str, rings: tuple[str, ...] = ("a", "b")) -> None:
        for key in keys or tuple(KEYS.values()):
            for ring in rings:
                self.destroy(key, ring)

    def verdict(self) -> Verdict:
        return self.log.verdict(self.request)
