"""Which verdicts of `kv.audit` a report goes by: whose count, and which of them it uses. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from auditor.registry import ControlFold
from auditor.report.statement import Given
from events.codec import decode_audit
from events.errors import DecodeError
from events.ids import KeyId, Role, VerdictKind
from events.model.audit import AuditRecord, VerdictGiven
from events.topic import CONTROL


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict of kv.audit under a checked signature, with the record that carries it."""

    offset: int
    record: AuditRecord
    given: VerdictGiven

    def stated(self) -> Given:
        ends = {(one.topic, one.partition): one.offset for one in self.given.frontier}
        return Given(
            offset=self.offset,
            verdict=self.given.verdict,
            signer=self.record.signer,
            control=ends.get((CONTROL.name, 0), 0),
            given_ms=self.given.given_ms,
            bundle_sha256=self.given.bundle_sha256,
        )


def judged(offset: int, value: bytes, registry: ControlFold) -> Judged | None:
    """The verdict of one record of kv.audit, if an auditor of this log signed it whose key stands."""
    try:
        record = decode_audit(value)
        given = VerdictGiven.model_validate_json(record.statement)
    except (DecodeError, ValidationError):
        return None
    grant = registry.grants.get(KeyId(record.signer))
    if grant is None or grant.revoked_at is not None or Role.AUDITOR not in grant.roles:
        return None
    if given.log != registry.log:
        return None
    holds = registry.verify(grant.public_key, record.signature, record.statement)
    return Judged(offset, record, given) if holds else None


def chosen(verdicts: Iterable[Judged], numbers: Iterable[int]) -> list[Judged]:
    """Of each request the newest verdict and the first PROVEN, in the order of kv.audit."""
    wanted, kept = set(numbers), dict[tuple[int, str], Judged]()
    for one in sorted(verdicts, key=lambda known: known.offset):
        if one.given.request in wanted:
            kept[one.given.request, "newest"] = one
            if one.given.verdict is VerdictKind.PROVEN:
                kept.setdefault((one.given.request, "proven"), one)
    return sorted(set(kept.values()), key=lambda known: known.offset)


def verdict_line(one: Judged) -> dict[str, Any]:
    """The record as a line of the report, in which `judged` finds the same verdict again."""
    return {"t": "verdict", "o": one.offset, "v": json.loads(one.record.model_dump_json())}
