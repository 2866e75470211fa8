"""What a report says, as it is signed: its statement, its predicate and what that consists of. Pure."""

from __future__ import annotations

import json
from typing import Final, Literal

from pydantic import Field, ValidationError

from auditor.proof import BundleError, CheckpointStated, Subject, unseal
from events.ids import VerdictKind
from events.model.control import Scope
from events.model.field import Hex32, Offset, Record

REPORT_TYPE: Final = "urn:kvledger:predicate:deletion-report:v1"
NOT_JUDGED = "NOT JUDGED"
CLAIM = (
    "These are all deletion requests that the register holds from the first position up to, without, the next one, "
    "and "
    "the newest verdict that an auditor of this log had signed on each of them when the report was made."
)
NOT_CLAIMED = (
    "that a verdict still holds: each holds as of its own frontier; judge again with kvledger audit run --all",
    "which verdict is the newest: that no newer one was left out is the auditor's word",
    "times: they are those of the writers' clocks",
    "requests that were never written into this register",
)


class Given(Record):
    """A verdict as kv.audit holds it at `offset`; `control` is how far it had read the register."""

    offset: Offset
    verdict: VerdictKind
    signer: str
    control: Offset
    given_ms: int
    bundle_sha256: Hex32 | None


class Entry(Record):
    """One request. `proof_ms` is the time from its writing to the first PROVEN; `late` that its deadline passed before
    that, or before the report was made."""

    request: Offset
    record_sha256: Hex32
    scope: Scope
    requester: str
    reason: str
    key_scope: str | None
    written_ms: int
    deadline_s: int | None
    newest: Given | None
    first_proven: Given | None
    proof_ms: int | None
    late: bool


class NotObeyed(Record):
    """A record of the range that asks for a deletion and is none, or can't be read, with why."""

    offset: Offset
    why: str


class ReportPredicate(Record):
    """Whoever verifies recomputes all of it but `made_ms`, `audit_end` (how far kv.audit was read), `verifier` and
    the time stamp.
    `counts` are by verdict, NOT JUDGED for requests without one; `gaps` are positions that the register lost."""

    version: Literal[1] = 1
    log: str
    claim: str
    not_claimed: tuple[str, ...]
    first: Offset
    next: Offset
    control_end: Offset
    control_hash: Hex32
    gaps: tuple[tuple[int, int], ...]
    audit_end: Offset
    made_ms: int
    counts: dict[str, int]
    late: int
    entries: tuple[Entry, ...]
    not_obeyed: tuple[NotObeyed, ...]
    anchoring: str
    checkpoint: CheckpointStated | None
    verifier: str


class ReportStatement(Record):
    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: tuple[Subject, Subject]
    predicateType: Literal["urn:kvledger:predicate:deletion-report:v1"]
    predicate: ReportPredicate


def is_report(raw: bytes) -> bool:
    """Whether the first line is an envelope around a report; says nothing of whether it holds."""
    try:
        document = json.loads(unseal(raw.partition(b"\n")[0])[1])
    except (BundleError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("predicateType") == REPORT_TYPE


def read_report(payload: bytes) -> ReportStatement:
    """The statement, its signature not looked at. Raises BundleError."""
    try:
        return ReportStatement.model_validate_json(payload)
    except ValidationError as error:
        raise BundleError("the statement is no report of version 1") from error
