"""A deletion under audit: two workers that owe it, and the verdict on it."""

from __future__ import annotations

from auditor.finding import Verdict
from events.ids import VerdictKind, VerdictReason
from tests.support.audit_log import AuditLog, HookStub

PROVEN, REFUTED = VerdictKind.PROVEN, VerdictKind.REFUTED
PENDING, UNPROVABLE = VerdictKind.PENDING, VerdictKind.UNPROVABLE


def reasons(verdict: Verdict) -> set[VerdictReason]:
    return {reason.reason for reason in verdict.reasons}


class Fleet:
    """Two workers that hold old copies of both tenants, and a deletion of tenant acme."""

    def __init__(self, log: AuditLog | None = None) -> None:
        self.log = log or AuditLog()
        self.a, self.b = self.log.hook("w0").open(), self.log.hook("w10").open()
        for hook in (self.a, self.b):
            self.old = hook.store("acme", 1, 2, 3)
            hook.store("umbrella", 1, 2)
        self.request = self.log.delete()

    def finish(self, *hooks: HookStub) -> int:
        """Acks of all, the closing nonce, answers of all."""
        for hook in hooks or (self.a, self.b):
            hook.obey(self.request)
        return self.close(*hooks)

    def close(self, *hooks: HookStub) -> int:
        nonce = self.log.nonce(self.request)
        for hook in hooks or (self.a, self.b):
            hook.ack(self.request, nonce=nonce)
        return nonce

    def verdict(self) -> Verdict:
        return self.log.verdict(self.request)
