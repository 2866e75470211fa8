"""Exhibits: what is done to a bundle."""

from __future__ import annotations

import json
from collections.abc import Callable

from auditor.proof import seal, unseal
from events.chain import sha256
from events.ids import Role
from events.signing import Signer
from tests.museum.exhibit import STRANGER, exhibit, shown
from tests.support.audit_log import AuditLog
from tests.support.bundle import AUDITOR, bundle
from tests.support.deletion_case import Fleet
from tests.support.log import ControlLog


def _edited(
    made: bytes, edit: Callable[[dict[str, object]], dict[str, object] | None], signer: Signer
) -> bytes:
    """The bundle with edited lines of evidence, signed anew: None leaves a line out."""
    first, *lines = made.split(b"\n")
    kept: list[bytes] = []
    for line in lines:
        edited = edit(json.loads(line)) if line else {}
        if edited is not None:
            kept.append(json.dumps(edited, separators=(",", ":")).encode() if edited else line)
    body = b"\n".join(kept)
    statement = json.loads(unseal(first)[1])
    statement["subject"][1]["digest"]["sha256"] = sha256(body).hex()
    return seal(json.dumps(statement).encode(), signer) + b"\n" + body


@exhibit("withheld part", None)
def withheld_part(trick: bool) -> bytes:
    """An auditor leaves a tenant's parts out of the bundle and signs it."""
    fleet = Fleet()
    fleet.finish()

    def withhold(line: dict[str, object]) -> dict[str, object]:
        parts = line.get("b")
        if trick and line["t"] == "event" and isinstance(parts, dict):
            return {**line, "b": {"0": parts["0"]}}
        return line

    return _edited(shown(fleet), withhold, AUDITOR)


@exhibit("withheld record", None)
def withheld_record(trick: bool) -> bytes:
    """An auditor leaves the record that refutes out of the bundle and signs it."""
    fleet = Fleet()
    fleet.finish()
    if trick:
        fleet.a.store("acme", 1, admitted=3, signed=True)
    newest = (fleet.a.partition, len(fleet.log.events[fleet.a.partition]) - 1)

    def withhold(line: dict[str, object]) -> dict[str, object] | None:
        there = (line.get("p"), line.get("o"))
        return None if trick and there == newest else line

    return _edited(shown(fleet), withhold, AUDITOR)


@exhibit("verdict of one's own", None)
def verdict_of_ones_own(trick: bool) -> bytes:
    """An auditor writes PROVEN over evidence that refutes."""
    fleet = Fleet()
    fleet.finish()
    honest = shown(fleet)
    if not trick:
        return honest
    fleet.a.store("acme", 1, admitted=3, signed=True)
    body = shown(fleet).partition(b"\n")[2]
    statement = json.loads(unseal(honest.partition(b"\n")[0])[1])
    statement["subject"][1]["digest"]["sha256"] = sha256(body).hex()
    return seal(json.dumps(statement).encode(), AUDITOR) + b"\n" + body


@exhibit("bundle signed with another key", None)
def bundle_signed_with_another_key(trick: bool) -> bytes:
    """Whoever gets hold of a bundle edits it as he likes and signs it with a key of his own."""
    fleet = Fleet()
    fleet.finish()
    return _edited(shown(fleet), lambda line: line, STRANGER if trick else AUDITOR)


@exhibit("bundle of another log", None)
def bundle_of_another_log(trick: bool) -> bytes:
    """A whole log of one's own, with an operator and an auditor of one's own, in which all went well."""
    if not trick:
        fleet = Fleet()
        fleet.finish()
        return shown(fleet)
    control = ControlLog(secret=b"mine")
    fleet = Fleet(AuditLog(control))
    fleet.finish()
    return bundle(fleet.log, fleet.request, control.signers[Role.AUDITOR])
