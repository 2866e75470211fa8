"""Exhibits: stores whose keys are said to be gone."""

from __future__ import annotations

from events.ids import Role, VerdictReason
from events.model.part import Orphans
from tests.museum.exhibit import exhibit
from tests.support.bundle import bundle
from tests.support.deletion_case import UNPROVABLE
from tests.support.encrypted_store import EncryptedStore, gone


def _shown(store: EncryptedStore) -> bytes:
    return bundle(store.log, store.request)


@exhibit("ring that kept the key", UNPROVABLE, VerdictReason.DURABLE_TIER_UNCOVERED)
def ring_that_kept_the_key(trick: bool) -> bytes:
    """A store's key is destroyed where everybody looks, and stays in the backup that was listed too."""
    store = EncryptedStore()
    store.end()
    store.destroy_all(rings=("a",))
    store.destroy_all("k-eu", "k-rest", *(() if trick else ("k-acme",)), rings=("b",))
    return _shown(store)


@exhibit("ring that turns up afterwards", UNPROVABLE, VerdictReason.DURABLE_TIER_UNCOVERED)
def ring_that_turns_up(trick: bool) -> bytes:
    """After all the listed rings have destroyed a store's key, another one is found to hold it."""
    store = EncryptedStore()
    store.end()
    store.destroy_all()
    if trick:
        store.list_rings("k-acme", "laptop")
    return _shown(store)


@exhibit("copy beside the lock", UNPROVABLE, VerdictReason.DURABLE_TIER_UNCOVERED)
def copy_beside_the_lock(trick: bool) -> bytes:
    """A store that encrypts held blocks of the tenant without a key before, and says so; later it declares the key
    again."""
    store = EncryptedStore()
    if trick:
        store.declare("acme", None)
    store.declare("acme", "k-acme")
    store.end()
    store.destroy_all()
    return _shown(store)


@exhibit("store that writes on", UNPROVABLE, VerdictReason.DURABLE_TIER_UNCOVERED)
def store_that_writes_on(trick: bool) -> bytes:
    """A store whose key is destroyed takes in another block of the tenant: under which key, nobody says."""
    store = EncryptedStore()
    store.destroy_all()
    store.hook.store("acme" if trick else "umbrella", 2, holder="disk")
    store.end()
    return _shown(store)


@exhibit("blocks of nobody's key", UNPROVABLE, VerdictReason.DURABLE_TIER_UNCOVERED)
def blocks_of_nobodys_key(trick: bool) -> bytes:
    """The tenant's keys are destroyed; blocks that nobody could assign to a tenant lie under another one."""
    store = EncryptedStore()
    store.hook.write(Orphans(holder="disk", orphans=0, unassigned=3))
    store.end()
    store.destroy_all("k-acme", "k-eu", *(() if trick else ("k-rest",)))
    return _shown(store)


@exhibit(
    "key that its holder destroys",
    UNPROVABLE,
    VerdictReason.DURABLE_TIER_UNCOVERED,
    VerdictReason.SIGNATURE_INVALID,
)
def key_that_its_holder_destroys(trick: bool) -> bytes:
    """The worker itself attests, under its own key, that the store's key is gone from the last ring."""
    store = EncryptedStore()
    store.end()
    store.destroy_all("k-acme", "k-eu")
    store.destroy("k-rest", "a")
    more = {"signer": store.hook.signer} if trick else {}
    store.log.say(gone("k-rest", "b"), Role.SUPERVISOR, **more)
    return _shown(store)
