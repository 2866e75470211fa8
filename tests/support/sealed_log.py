"""Seals a hand-made log as `audit checkpoint` does: one segment a partition, one checkpoint over all."""

from __future__ import annotations

from collections.abc import Sequence

from auditor.anchoring import Anchor, WitnessPolicy, make_anchor
from auditor.checkpoint import NoteKey, cosign
from auditor.main_log import MainLog
from auditor.registry import ControlFold
from auditor.segment import LogWatch, raw_leaf
from events.codec import dump
from events.model.audit import AuditRecord, SegmentsSealed
from events.signing import Signer, verify
from tests.support.audit_log import AuditLog
from tests.support.bundle import AUDITOR


def sealed(log: AuditLog, witnesses: Sequence[tuple[NoteKey, Signer]] = (), *, given_s: int = 77) -> Anchor:
    """The checkpoint over the log as it stands, cosigned by the witnesses, all of whom are wanted."""
    registry = ControlFold(verify)
    watch = LogWatch([], {("kv.events", p): start for p, start in log.starts.items()})
    for offset, (value, signature) in enumerate(log.control.records):
        registry.feed(offset, value, signature)
        watch.take(("kv.control", 0), offset, raw_leaf(offset, value, signature))
    for partition, records in sorted(log.events.items()):
        for offset, one in enumerate(records):
            watch.take(("kv.events", partition), offset, raw_leaf(offset, one.value, one.signature))
    new = watch.settle({(one.topic, one.partition): one.offset for one in log.frontier()}).new
    main = MainLog(registry)
    raw = dump(SegmentsSealed(log=registry.log, first_leaf=0, segments=tuple(new)))
    assert main.take(dump(AuditRecord(signer=AUDITOR.id, signature=AUDITOR.sign(raw), statement=raw)))
    note = main.sign_head(AUDITOR)
    note = note.with_signatures([cosign(note.text, key, signer, given_s) for key, signer in witnesses])
    return make_anchor(main, note, WitnessPolicy(tuple(key for key, _ in witnesses), len(witnesses)), {})
