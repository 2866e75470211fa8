"""Whoever dies at whatever record of a deletion leaves it unproven; the last answer alone proves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from events.ids import VerdictKind
from tests.support.audit_log import AuditLog, HookStub
from tests.support.deletion_case import Fleet


def test_a_deletion_that_stops_at_any_record_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if everybody were killed behind each of them: the log then ends there."""
    fleet = Fleet()
    kinds: list[VerdictKind] = [fleet.verdict().kind]
    write, say = HookStub.write, AuditLog.say

    def judge_after(writing: Callable[..., Any]) -> Callable[..., Any]:
        def written(*given: Any, **more: Any) -> Any:
            done = writing(*given, **more)
            kinds.append(fleet.verdict().kind)
            return done

        return written

    monkeypatch.setattr(HookStub, "write", judge_after(write))
    monkeypatch.setattr(AuditLog, "say", judge_after(say))
    fleet.finish()
    assert len(kinds) == 8
    assert kinds == [VerdictKind.PENDING] * 7 + [VerdictKind.PROVEN]


def test_a_worker_that_starts_again_in_mid_deletion_has_to_do_it_all_again() -> None:
    for done in range(3):
        fleet = Fleet()
        fleet.b.obey(fleet.request)
        if done >= 1:
            fleet.a.remove("acme", fleet.old[:1], fleet.request)
        if done >= 2:
            fleet.a.obey(fleet.request)
        again = fleet.log.hook("w0", life="life-2").open()
        assert fleet.verdict().kind is not VerdictKind.PROVEN
        fleet.log.attest(fleet.a)
        assert fleet.verdict().kind is VerdictKind.PENDING
        fleet.finish(again, fleet.b)
        assert fleet.verdict().kind is VerdictKind.PROVEN
