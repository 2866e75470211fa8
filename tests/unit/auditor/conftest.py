"""Every verdict that these tests come to is a vector: its bundle must convince both verifiers."""

from __future__ import annotations

import pytest

from auditor.finding import Verdict
from tests.support.audit_log import AuditLog
from tests.support.bundle import AUDITOR, bundle, first_says, second_says


@pytest.fixture(autouse=True)
def _both_verifiers_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = AuditLog.verdict

    def verdict(log: AuditLog, request: int) -> Verdict:
        found = judged(log, request)
        made = bundle(log, request)
        assert first_says(made, AUDITOR.public_key) == found.kind
        assert second_says(made, AUDITOR.public_key) == found.kind
        return found

    monkeypatch.setattr(AuditLog, "verdict", verdict)
