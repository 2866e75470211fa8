"""Whether the destruction of keys discharges a durable store: P6. Pure; the rule is `docs/audit-rule.md`.

A store that keeps its blocks encrypted is as good as gone once every key is that they may lie under, in every ring
that ever held one. Which keys, and which rings, is what `kv.control` says of them, all of it: nothing that was
declared is forgotten, and whatever is told later takes a discharge away again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from auditor.content import Landing
from auditor.record import StreamRecord
from events.chain import store_alias
from events.model.part import Orphans, TierChanged

if TYPE_CHECKING:
    from auditor.case import StreamCase
    from auditor.evidence import Evidence

SHREDDED = "key destroyed in rings "
"""How a discharge begins that rests on keys."""
NOBODYS = ""
"""Stands for what belongs to no domain that can be named."""


@dataclass(frozen=True, slots=True)
class Shredding:
    """`rings` in which every key was destroyed, or `why` that doesn't discharge the store and `cure`, what would. All
    are empty for a store of which nobody ever said that it encrypts."""

    rings: tuple[str, ...] = ()
    why: str = ""
    cure: str = ""

    @property
    def discharge(self) -> str:
        """What a holder's row says; "" if it isn't discharged so."""
        return f"{SHREDDED}{', '.join(self.rings)}" if self.rings else ""

    def assumption(self, durable_id: str) -> str:
        """What the discharge rests on, besides the attestations."""
        rings = ", ".join(self.rings)
        return f"{durable_id} encrypts as declared; its keys were never anywhere but in rings {rings}"


class ShreddedStores(dict[str, Shredding]):
    """`shredded` of each store, looked at once."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__()
        self._evidence = evidence

    def __missing__(self, durable_id: str) -> Shredding:
        found = self[durable_id] = shredded(self._evidence, durable_id)
        return found


def told_into(case: StreamCase, record: StreamRecord, landed: list[Landing]) -> Iterator[tuple[str, str]]:
    """(durable id, domain) of every store into which a record says that something came, or that it lies there."""
    durable = {
        name: view.durable_id for name, view in case.fold.holders.items() if view.durable_id is not None
    }
    if not durable:
        return
    places = [(one.place.holder, one.place.alias) for one in landed if one.ids]
    for alias, events in record.parts.items():
        places += [(one.to_holder, alias) for one in events if isinstance(one, TierChanged) and one.ids]
    for holder, alias in places:
        store = durable.get(holder)
        if store is not None:
            yield store, case.domains.get(alias, alias.hex())
    for event in record.stream_events:
        if isinstance(event, Orphans) and event.orphans + event.unassigned > 0:
            store = durable.get(event.holder)
            if store is not None:
                yield store, NOBODYS


def declared_keys(evidence: Evidence, durable_id: str) -> frozenset[bytes]:
    """Keys under which anything that the request may cover may lie in a store."""
    aliases: set[bytes | None] = {None}
    for domain in evidence.scope.domains & set(evidence.scope.alias_keys):
        aliases.add(store_alias(evidence.scope.alias_keys[domain], durable_id))
    every = [evidence.registry.stores.encrypted.get((durable_id, alias), []) for alias in aliases]
    return frozenset(key for declared in every for _, key in declared if key is not None)


def shredded(evidence: Evidence, durable_id: str) -> Shredding:
    """Whether everything in a store that the request may cover lies under keys that are gone."""
    stores = evidence.registry.stores
    if not any(store == durable_id for store, _ in stores.encrypted):
        return Shredding()
    since = stores.owned_since.get(durable_id)
    if since is None or not evidence.scope.domains or evidence.scope.domains - set(evidence.scope.alias_keys):
        return Shredding(why="whose keys have to be destroyed can't be told")
    rings: set[str] = set()
    named: dict[str, bytes | None] = {
        domain: store_alias(evidence.scope.alias_keys[domain], durable_id)
        for domain in sorted(evidence.scope.domains)
    }
    for domain, alias in (named | {NOBODYS: None}).items():
        what = f"what is in domain {domain}" if domain else "what is in no domain that can be named"
        declared = stores.encrypted.get((durable_id, alias), [])
        bare = [offset for offset, key in declared if key is None]
        if bare:
            return Shredding(why=f"{what} lies unencrypted by kv.control/{bare[0]}")
        if not any(offset > since for offset, _ in declared):
            cure = f"declare it, if all of it ever lay so: kvledger holder encrypted {durable_id}"
            return Shredding(why=f"under which key {what} lies, nobody has declared for its owner", cure=cure)
        told = evidence.told_into.get((durable_id, domain))
        begun = declared[0][0]
        if told is not None and told[0] < begun:
            why = f"{what} was told to lie there before anybody had declared a key (kv.control/{begun})"
            return Shredding(why=why)
        over = -1
        for key in sorted({key for _, key in declared if key is not None}):
            ends, missing = _ends(evidence, key)
            if missing:
                return missing
            over = max(over, *ends.values())
            rings |= ends.keys()
        if told is not None and told[1] >= over:
            why = f"{what} was told to lie there by a hook that knew of the key's destruction (kv.control/{over})"
            return Shredding(why=why)
    return Shredding(rings=tuple(sorted(rings)))


def _ends(evidence: Evidence, key: bytes) -> tuple[dict[str, int], Shredding | None]:
    """By ring, the record of the key's destruction there; or what is missing."""
    stores = evidence.registry.stores
    listed = stores.rings.get(key, {})
    if not listed:
        cure = "list every ring that ever held the key: kvledger key rings"
        return {}, Shredding(why=f"no ring is listed for key {key.hex()}", cure=cure)
    ends = {ring: stores.key_ends.get((key, ring), -1) for ring in listed}
    left = sorted(ring for ring, (offset, _) in listed.items() if ends[ring] < offset)
    if left:
        names = ", ".join(left)
        cure = f"destroy the key in {names} and have that attested: kvledger attest key-destroyed"
        return {}, Shredding(why=f"key {key.hex()} is not destroyed in {names}", cure=cure)
    return ends, None
