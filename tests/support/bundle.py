"""Bundles of hand-made logs, and the second verifier, which is loaded from the file that users get."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from auditor.anchoring import Anchor, Anchoring
from auditor.bundle import make_bundle, shown_record
from auditor.proof import BundleError, StampStated
from auditor.verdict import UNANCHORED, judge
from auditor.verify import verify_bundle
from events.chain import sha256
from events.kafka.connection import RawRecord
from events.signing import Signer
from tests.support.audit_log import AuditLog

AUDITOR = Signer.from_seed(sha256(b"auditor"))
OPERATOR = Signer.from_seed(sha256(b"operator"))
INVALID = "invalid"


def raw(topic: str, partition: int, offset: int, value: bytes, signature: bytes | None) -> RawRecord:
    return RawRecord(topic, partition, offset, None, value, signature, 0)


def bundle(
    log: AuditLog,
    request: int,
    signer: Signer = AUDITOR,
    *,
    anchor: Anchor | None = None,
    anchoring: Anchoring = UNANCHORED,
    lost: frozenset[int] = frozenset(),
    stamp: StampStated | None = None,
    given_ms: int | None = None,
) -> bytes:
    """What `audit run --bundle` would write for the log as it stands; `lost` are records that kv.control lost."""
    evidence = log.evidence(request, lost=lost)
    verdict = judge(evidence, log.frontier(), anchoring=anchoring)
    control = [raw("kv.control", 0, o, v, s) for o, (v, s) in enumerate(log.control.records) if o not in lost]
    events = [
        raw("kv.events", p, o, e.value, e.signature)
        for p, records in log.events.items()
        for o, e in enumerate(records)
        if o >= log.starts.get(p, 0)
    ]
    shown = [shown_record(one, evidence, anchored=anchor is not None) for one in events]
    return make_bundle(verdict, evidence, control, shown, signer, anchor, stamp, given_ms=given_ms)


def _load() -> ModuleType:
    path = Path(__file__).parents[2] / "docs" / "verify_bundle.py"
    spec = importlib.util.spec_from_file_location("verify_bundle", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SECOND = _load()


def first_says(made: bytes, key: bytes) -> str:
    """The verdict by `auditor.verify`, or INVALID."""
    try:
        return str(verify_bundle(made, key).verdict.kind)
    except BundleError:
        return INVALID


def second_says(made: bytes, key: bytes) -> str:
    """The verdict by the second verifier, or INVALID."""
    try:
        return str(SECOND.verify(made, key))
    except SECOND.Invalid:
        return INVALID
