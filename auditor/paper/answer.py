"""What each holder's answer is, in words, and on whose word it rests. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from auditor.finding import HolderFound, Reason, Verdict
from auditor.proof import AttestationStated, HoldStated, Predicate
from auditor.shredding import SHREDDED
from events.ids import VerdictReason

EYEWITNESSES = {
    "kvledger-bridge": "seen by the bridge that held the engine's process",
    "kubernetes": "seen by the Kubernetes attester",
}
"""Attesters that look at the process or at the container's status themselves; all others state what they were told."""
_NAMED = re.compile(r"kv\.control/(\d+)")
OWES = "still owes an answer"
HELD = "waits for a legal hold"


class Answer(NamedTuple):
    """`group`: what it counts as. `text`: what stands in the holder's row."""

    group: str
    text: str


def answer_of(
    verdict: Verdict,
    holder: HolderFound,
    attestations: Sequence[AttestationStated] = (),
    holds: Sequence[HoldStated] = (),
) -> Answer:
    """What discharges a holder, or why nothing does yet."""
    told = holder.discharge
    if told == "ack":
        return Answer("confirmed the removal", f"confirmed the removal (record {holder.ack_seq})")
    if told == "none":
        return _owes(verdict, holder, [one.hold for one in holds if one.released_at is None])
    named = {int(offset) for offset in _NAMED.findall(told)}
    if told == "destroyed":
        words = [
            one for one in attestations if one.kind == "holder_destroyed" and one.subject == holder.durable_id
        ]
        said = "".join(f", by the word of {whose_word(one)}" for one in words[:1])
        return Answer("the store was stated to be destroyed", f"the store is destroyed{said}")
    if told.startswith(SHREDDED):
        words = [one for one in attestations if one.kind == "key_destroyed"]
        said = "".join(f"; {one.subject} by the word of {whose_word(one)}" for one in words)
        return Answer(
            "the store's keys were destroyed", f"what it keeps can't be read any more: {told}{said}"
        )
    words = [one for one in attestations if one.offset in named]
    for one in words:
        if one.attester in EYEWITNESSES:
            return Answer("memory proven to have ended", f"its engine ended, {whose_word(one)}")
        return Answer("memory stated to have ended", f"stated to have ended by {whose_word(one)}")
    if told.startswith("closed"):
        return Answer("ended by its own last record", f"says itself that its engine ended: {told}")
    if told.startswith("exit attested"):
        return Answer("memory stated to have ended", f"stated to have ended: {told}; by whom is in the file")
    return Answer(told, told)


def answer_line(verdict: Verdict, holder: HolderFound, stated: Predicate | None) -> str:
    """The discharge as the verdict has it, and what it means where that isn't the same. `stated`: the proof's
    statement, if there is one."""
    if holder.discharge == "ack":
        return f"ack (record {holder.ack_seq})"
    if stated is None:
        told = f", {answer_of(verdict, holder).text}" if holder.discharge == "none" else ""
        return f"{holder.discharge}{told}"
    found = answer_of(verdict, holder, stated.attestations or (), stated.holds or ())
    return f"{holder.discharge}, {found.text}"


def whose_word(one: AttestationStated) -> str:
    """Who says it, what is offered for it, and where it stands."""
    who = "a supervisor" if one.attester is None else f"attester {one.attester}"
    who = EYEWITNESSES.get(one.attester or "", "an operator" if one.attester == "operator" else who)
    return f"{who}: «{one.evidence}» (register {one.offset}, key {one.signer})"


def word_assumed(one: AttestationStated) -> str:
    """That an exit or a destruction is somebody's word, as an assumption."""
    if one.kind == "key_destroyed":
        return f"That key {one.subject} is destroyed is the word of {whose_word(one)}."
    if one.kind == "holder_destroyed":
        return f"That store {one.subject} is destroyed is the word of {whose_word(one)}."
    if one.attester in EYEWITNESSES:
        return f"That engine {one.subject} ended, and its memory with it, was {whose_word(one)}."
    word = whose_word(one)
    return (
        f"That engine {one.subject} ended, and its memory with it, is the word of {word}; no program saw it."
    )


def _owes(verdict: Verdict, holder: HolderFound, held_by: Sequence[str]) -> Answer:
    mine = _about(verdict, holder)
    for one in mine:
        if one.reason is VerdictReason.DELETE_REFUSED:
            return Answer("refuses", f"refuses: {one.detail}; {one.cure}")
        if one.condition == "P6":
            return Answer("gone without an answer", f"gone without an answer: {one.detail}")
    for one in mine:
        if one.reason is VerdictReason.FRONTIER_BEHIND and one.condition == "P2":
            if held_by:
                return Answer(HELD, f"waits: legal hold {', '.join(held_by)} stands")
            return Answer(OWES, f"{OWES}: {one.detail}")
    return Answer(OWES, OWES)


def _about(verdict: Verdict, holder: HolderFound) -> list[Reason]:
    """Reasons that concern the holder's stream or its store."""
    stream = f"{holder.worker}/{holder.rank}/{holder.epoch}"
    return [one for one in verdict.reasons if one.subject in (stream, f"{stream} {holder.holder}")]
