"""Durable stores by what `kv.control` says of them: who answers for each, which are gone, under which keys what is in
them lies, and in which rings those keys are. What that discharges is the rule of `auditor.condition` and
`auditor.shredding`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from events.model.control import HolderDestroyed, HolderEncrypted, HolderEnrolled, KeyDestroyed, KeyListed
from events.signing import key_id


class RingListed(NamedTuple):
    """A ring that holds a storage key, by the newest record that lists it there. `attester` None: whoever has the
    supervisor's role may attest the key's destruction in it."""

    offset: int
    attester: bytes | None


@dataclass(slots=True)
class DurableStores:
    """By durable id: `owners` are workers, the rest offsets of the newest record that says so; `owned_since` is the
    one that handed a store to its owner. `encrypted` has all that was ever declared, (offset, key), key None:
    unencrypted, by (durable id, alias), alias None: what is in no domain that can be named. `rings` and `key_ends`
    have the keys themselves."""

    owners: dict[str, str] = field(default_factory=dict)
    owned_since: dict[str, int] = field(default_factory=dict)
    enrolled: dict[str, int] = field(default_factory=dict)
    destroyed: dict[str, int] = field(default_factory=dict)
    encrypted: dict[tuple[str, bytes | None], list[tuple[int, bytes | None]]] = field(default_factory=dict)
    rings: dict[bytes, dict[str, RingListed]] = field(default_factory=dict)
    key_ends: dict[tuple[bytes, str], int] = field(default_factory=dict)

    def enrol(self, offset: int, body: HolderEnrolled, answers: Callable[[str], bool]) -> str:
        """A store goes to another owner only once the worker that has it no longer `answers`; "owner_stands" if it
        does."""
        known = self.owners.get(body.durable_id, body.owner)
        if known != body.owner and answers(known):
            return "owner_stands"
        if self.owners.get(body.durable_id) != body.owner:
            self.owned_since[body.durable_id] = offset
        self.owners[body.durable_id] = body.owner
        self.enrolled[body.durable_id] = offset
        return ""

    def destroy(self, offset: int, body: HolderDestroyed) -> None:
        self.destroyed[body.durable_id] = offset

    def encrypt(self, offset: int, body: HolderEncrypted) -> None:
        self.encrypted.setdefault((body.durable_id, body.alias), []).append((offset, body.key))

    def list_key(self, offset: int, body: KeyListed) -> None:
        listed = ((one.ring, RingListed(offset, one.attester)) for one in body.rings)
        self.rings.setdefault(body.key, {}).update(listed)

    def end_key(self, offset: int, signer: str, body: KeyDestroyed) -> str:
        """A key is gone from a ring by the word of that ring's attester; else why that counts for nothing."""
        ring = self.rings.get(body.key, {}).get(body.ring)
        if ring is None:
            return "unlisted_ring"
        if ring.attester is not None and key_id(ring.attester) != signer:
            return "not_its_attester"
        self.key_ends[body.key, body.ring] = offset
        return ""
