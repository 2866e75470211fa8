"""Logs and bundles of another version, holders that nobody registered, clocks that run backwards."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

import tests.support.log as log_module
from auditor.proof import seal, unseal
from events.chain import sha256
from events.codec import encode_control
from events.ids import Role, VerdictReason
from events.model.control import Fenced
from events.model.part import Ack, RequestStanding
from tests.support.audit_log import RawEvent
from tests.support.bundle import AUDITOR, INVALID, OPERATOR, bundle, first_says, second_says
from tests.support.deletion_case import PENDING, PROVEN, UNPROVABLE, Fleet, reasons


def test_a_record_of_an_unknown_version_is_a_record_that_cannot_be_read() -> None:
    fleet = Fleet()
    fleet.a.store("acme", 9, admitted=3)
    records = fleet.log.events[fleet.a.partition]
    head, _, rest = records[-1].value.partition(b"\n")
    newer = json.dumps(json.loads(head) | {"v": 2}, separators=(",", ":")).encode()
    records[-1] = RawEvent(newer + b"\n" + rest, fleet.a.signer.sign(newer))
    fleet.finish()
    verdict = fleet.verdict()
    assert (verdict.kind, VerdictReason.UNPARSEABLE_RECORD in reasons(verdict)) == (PENDING, True)


def test_a_signed_order_of_an_unknown_version_is_named() -> None:
    fleet = Fleet()
    body = Fenced(worker="w0", rank=0, epoch=fleet.a.epoch, evidence="operator")
    offset = fleet.log.say(body, Role.CONTROL)
    head, _, rest = fleet.log.control.records[offset][0].partition(b"\n")
    newer = json.dumps(json.loads(head) | {"v": 2}, separators=(",", ":")).encode()
    key = fleet.log.control.signers[Role.CONTROL]
    fleet.log.control.records[offset] = (newer + b"\n" + rest, key.sign(newer))
    fleet.finish()
    verdict = fleet.verdict()
    assert (verdict.kind, reasons(verdict)) == (UNPROVABLE, {VerdictReason.UNPARSEABLE_RECORD})


def test_a_bundle_of_an_unknown_version_is_invalid() -> None:
    fleet = Fleet()
    fleet.finish()
    first, _, body = bundle(fleet.log, fleet.request).partition(b"\n")
    newer = body.replace(b'"version":1', b'"version":2')
    assert newer != body
    statement = json.loads(unseal(first)[1])
    statement["subject"][1]["digest"]["sha256"] = sha256(newer).hex()
    made = seal(json.dumps(statement).encode(), AUDITOR) + b"\n" + newer
    assert first_says(made, OPERATOR.public_key) == INVALID
    assert second_says(made, OPERATOR.public_key) == INVALID


def test_an_ack_for_a_holder_that_nobody_declared_discharges_nothing() -> None:
    """Registered, but its stream begins behind a hole: nobody knows what it has."""
    fleet = Fleet()
    silent = fleet.log.hook("w100")
    silent.write(silent.opening(), lost=True)
    standing = RequestStanding(request=fleet.request, removed=0, old_left=0)
    for hook in (fleet.a, fleet.b):
        hook.obey(fleet.request)
    for nonce in (None, fleet.log.nonce(fleet.request)):
        ack = Ack(requests=(standing,), nonce=nonce)
        silent.write(parts={"acme": [ack], "acme/eu": [ack]})
    fleet.close()
    assert fleet.verdict().kind is not PROVEN
    assert VerdictReason.SEQ_GAP in reasons(fleet.verdict())


def test_no_verdict_changes_with_a_clock_that_runs_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Fleet()
    honest.finish()
    clock = itertools.count(9_000, -1_000)

    def backwards(*given: Any, **more: Any) -> Any:
        return encode_control(*given, **{**more, "written_ms": max(0, next(clock))})

    monkeypatch.setattr(log_module, "encode_control", backwards)
    fleet = Fleet()
    assert fleet.verdict().kind is PENDING
    fleet.finish()
    found, before = fleet.verdict(), honest.verdict()
    assert (found.kind, found.conditions, found.reasons) == (before.kind, before.conditions, before.reasons)
    assert found.kind is PROVEN
