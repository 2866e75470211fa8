"""kvledger's own canary owes no ack, unless its stream ever names a copy."""

from __future__ import annotations

from events.ids import CANARY_WORKER, VerdictKind
from tests.support.audit_log import AuditLog


def test_a_canary_that_holds_nothing_delays_no_proof() -> None:
    log = AuditLog()
    hook, canary = log.hook("w0").open(), log.hook(CANARY_WORKER)
    canary.write(canary.opening())
    hook.store("acme", 1, 2)
    request = log.delete()
    hook.obey(request)
    hook.ack(request, nonce=log.nonce(request))
    assert log.verdict(request).kind is VerdictKind.PROVEN


def test_a_worker_under_the_canarys_name_that_stores_owes_like_any_other() -> None:
    log = AuditLog()
    hook, false = log.hook("w0").open(), log.hook(CANARY_WORKER).open()
    hook.store("acme", 1, 2)
    false.store("acme", 3)
    request = log.delete()
    hook.obey(request)
    hook.ack(request, nonce=log.nonce(request))
    assert log.verdict(request).kind is VerdictKind.PENDING
