"""Who belongs to the fleet, whose keys count, and what binds the log, for a paper. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from auditor.paper.element import Element, Facts, Paragraph, Table, moment
from auditor.proof import CheckpointStated, Predicate


def membership(predicate: Predicate) -> Iterator[Element]:
    fleet = predicate.membership
    yield Facts(
        [
            ("Whose word it is who belongs to it", fleet.basis),
            ("Engine lives registered", f"{fleet.lives:,}"),
            ("Series of records", f"{fleet.streams:,}"),
            ("Probes of kvledger itself, which hold nothing", ", ".join(fleet.canaries) or "none"),
            ("Not registered, yet reporting", ", ".join(fleet.strangers) or "none"),
            ("Operator's key", fleet.operator),
        ]
    )
    yield Table(
        "Keys that may sign",
        ("Key", "Roles", "Revoked"),
        [
            (one.key, ", ".join(one.roles), "no" if one.revoked_at is None else f"at {one.revoked_at}")
            for one in fleet.keys
        ],
    )


def log(predicate: Predicate) -> Iterator[Element]:
    yield Paragraph(_binding(predicate.checkpoint, predicate.anchoring))
    yield Facts(
        [
            ("Log", predicate.log),
            ("Stated", predicate.anchoring),
            ("Running hash of the register", predicate.verdict.control_hash),
            ("Records that nobody obeys", "; ".join(predicate.verdict.records_ignored) or "none"),
        ]
    )
    checkpoint = predicate.checkpoint
    if checkpoint is None:
        return
    yield Facts(
        [
            ("Checkpoint", f"{checkpoint.origin}, {checkpoint.size:,} segments"),
            ("Root", checkpoint.root.hex()),
            (
                "Witnesses needed",
                f"{checkpoint.quorum} of {len(checkpoint.witnesses)}"
                if checkpoint.witnesses
                else "none listed",
            ),
            ("Time stamp", _stamp(checkpoint)),
        ]
    )
    if checkpoint.witnesses:
        yield Table(
            "Outside witnesses",
            ("Witness", "Countersigned"),
            [
                (one.key, "no" if one.cosigned_s is None else moment(one.cosigned_s * 1_000))
                for one in checkpoint.witnesses
            ],
        )


def _binding(checkpoint: CheckpointStated | None, line: str) -> str:
    if checkpoint is None or line.startswith("anchoring: none"):
        return (
            "Nothing outside binds this log: whoever keeps it could have rewritten it as a whole before it was "
            "audited, and "
            "this proof would not show that."
        )
    if not checkpoint.witnesses:
        return (
            "The log is sealed by the auditor's own checkpoint. Records can't be changed without contradicting it, "
            "but "
            "nobody outside has confirmed having seen it."
        )
    return (
        "The log is sealed by a checkpoint. Witnesses who keep memory of their own have countersigned it: the log "
        "can't be "
        "rewritten without contradicting what they have seen."
    )


def _stamp(checkpoint: CheckpointStated) -> str:
    if checkpoint.stamp is None:
        return "none"
    stamp = checkpoint.stamp
    return f"{stamp.authority} at {stamp.time}, as the auditor read it; check it with `audit verify --tsa`"
