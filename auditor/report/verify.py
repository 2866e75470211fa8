"""Verifies a report offline: recomputes it from the register that it shows. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from auditor.anchoring import Anchor, Anchoring, WitnessPolicy
from auditor.line import REPORT, read_lines
from auditor.proof import BundleError, StampStated, pae, unseal
from auditor.report.judgement import chosen, judged
from auditor.report.predicate import report_predicate
from auditor.report.register import Range, anchoring_of, fold_shown, requests_in
from auditor.report.statement import NOT_JUDGED, ReportPredicate, read_report
from auditor.verdict import UNANCHORED
from auditor.verify import GARBLED, auditor_key, read_anchor
from events.chain import sha256
from events.errors import KvledgerError
from events.ids import KeyId, VerdictKind
from events.signing import key_id, verify


@dataclass(frozen=True, slots=True)
class VerifiedReport:
    """A report that holds. `faults` say why its population can't be shown to be complete; the rest is as for a
    bundle."""

    predicate: ReportPredicate
    signer: str
    anchor: str
    checked: Anchor | None
    anchoring: Anchoring
    stamp: StampStated | None

    @property
    def faults(self) -> tuple[str, ...]:
        gaps = [
            f"topic_compacted: records {one} to {last} of kv.control are missing"
            for one, last in self.predicate.gaps
        ]
        return (*gaps, *(f"checkpoint_unverified: {one}" for one in self.anchoring.problems))

    @property
    def kind(self) -> VerdictKind:
        """The worst that it says of any request; what nobody judged is pending, what has faults not provable."""
        found = set(self.predicate.counts)
        if VerdictKind.REFUTED in found:
            return VerdictKind.REFUTED
        if found & {VerdictKind.PENDING.value, NOT_JUDGED}:
            return VerdictKind.PENDING
        return (
            VerdictKind.UNPROVABLE if VerdictKind.UNPROVABLE in found or self.faults else VerdictKind.PROVEN
        )

    def witnessed(self, policy: WitnessPolicy) -> int:
        """How many of the reader's own witnesses have cosigned the log that holds this register."""
        if self.checked is None or not self.anchoring.checkpoint or self.anchoring.problems:
            return 0
        return policy.count(self.checked.note)


def verify_report(raw: bytes, trusted_key: bytes) -> VerifiedReport:
    """Checks envelope, signatures and hashes, and that the register, as shown, gives the very report. `trusted_key` is
    the operator's or the auditor's public key. Raises BundleError, and nothing else."""
    first, newline, body = raw.partition(b"\n")
    if not newline:
        raise BundleError("the file holds no evidence")
    signer, payload, signature = unseal(first)
    try:
        return _verify(body, KeyId(signer), payload, signature, trusted_key)
    except BundleError:
        raise
    except (*GARBLED, KvledgerError) as error:
        raise BundleError(f"the evidence is garbled ({type(error).__name__})") from error


def _verify(
    body: bytes, signer: KeyId, payload: bytes, signature: bytes, trusted_key: bytes
) -> VerifiedReport:
    lines = read_lines(body, REPORT)
    form = lines[0]
    if form["version"] != 1:
        raise BundleError("the evidence has an unknown format")
    span = Range(int(form["first"]), int(form["next"]))
    registry = fold_shown(lines, span)
    key, vouched = auditor_key(registry, signer, trusted_key)
    if key_id(key) != signer or not verify(key, signature, pae(payload)):
        raise BundleError("the envelope is not signed by this key")
    statement = read_report(payload)
    if statement.subject[1].digest.sha256 != sha256(body):
        raise BundleError("the evidence is not the one that was signed")
    registry.reach(statement.predicate.control_end)
    if not 0 <= span.first <= span.next <= registry.next_offset:
        raise BundleError("the register doesn't reach over the range")
    used = []
    for line in lines:
        if line["t"] == "verdict":
            one = judged(int(line["o"]), json.dumps(line["v"]).encode(), registry)
            if one is None:
                raise BundleError("a verdict is not signed by an auditor of this log")
            used.append(one)
    if chosen(used, requests_in(registry, span)) != used:
        raise BundleError("the verdicts are not the newest and the first proven of the requests")
    checked = read_anchor(registry, lines)
    anchoring = UNANCHORED if checked is None else anchoring_of(checked, registry, lines)
    stated = statement.predicate
    stamp = None if stated.checkpoint is None else stated.checkpoint.stamp
    found = report_predicate(
        span, registry, used, stated.made_ms, stated.audit_end, checked, anchoring, stamp
    )
    if found != stated.model_copy(update={"verifier": found.verifier}):
        raise BundleError("the register gives another report than the one stated")
    if statement.subject[0].digest.sha256 != registry.hash or any(
        one.offset >= stated.audit_end for one in used
    ):
        raise BundleError("the statement names another register")
    return VerifiedReport(stated, signer, vouched, checked, anchoring, stamp)
