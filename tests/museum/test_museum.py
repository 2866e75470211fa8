"""Nothing in the museum is ever proven, by either verifier, and each is told by its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from auditor.proof import unseal
from events.ids import VerdictKind, VerdictReason
from tests.museum.collection import EXHIBITS
from tests.museum.exhibit import Exhibit
from tests.support.bundle import INVALID, OPERATOR, first_says, second_says

CATALOGUE = Path("docs/exploits.md")
SPECIFIED = {
    "zombie epoch",
    "replayed ack",
    "forged checksum",
    "pruned prefix",
    "split view",
    "laundering duplicate",
    "laundering snapshot",
    "transfer between two acks",
    "request truncated and its offset reused",
    "store handed to a new owner",
    "withheld part",
    "bridge upgraded in mid-deletion",
    "self-granted fence",
}


def judged(made: bytes) -> str:
    first, second = first_says(made, OPERATOR.public_key), second_says(made, OPERATOR.public_key)
    assert first == second
    return first


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda one: one.name)
def test_no_trick_gets_a_proof(exhibit: Exhibit) -> None:
    made = exhibit.tell(True)
    assert judged(made) == (exhibit.verdict or INVALID)
    assert exhibit.verdict is not VerdictKind.PROVEN
    if exhibit.verdict is not None:
        verdict = json.loads(unseal(made.split(b"\n")[0])[1])["predicate"]["verdict"]
        assert {one["reason"] for one in verdict["reasons"]} == exhibit.reasons
        assert bool(verdict["counterexamples"]) == (exhibit.verdict is VerdictKind.REFUTED)


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda one: one.name)
def test_without_the_trick_the_same_story_is_proven(exhibit: Exhibit) -> None:
    assert judged(exhibit.tell(False)) == VerdictKind.PROVEN


def test_the_catalogue_lists_what_is_there() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in CATALOGUE.read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| exhibit")
    ]
    assert [(name, verdict, found) for name, _, verdict, found in rows] == [
        (
            one.name,
            one.verdict or INVALID,
            ", ".join(sorted(one.reasons)) or "counterexample" * bool(one.verdict),
        )
        for one in EXHIBITS
    ]
    assert [row[1] for row in rows] == [" ".join((one.tell.__doc__ or "").split()) for one in EXHIBITS]


def test_every_exhibit_that_the_specification_names_is_there() -> None:
    names = [one.name for one in EXHIBITS]
    assert len(names) == len(set(names))
    assert set(names) >= SPECIFIED


SHOWN_ELSEWHERE = {VerdictReason.CHECKPOINT_UNVERIFIED, VerdictReason.WITNESS_QUORUM_MISSING}
"""They need an anchored log: `tests/unit/auditor/test_anchoring.py`."""
NEVER_ALONE = {
    VerdictReason.NOT_EVALUATED,
    VerdictReason.DEATH_BY_TIMEOUT_ONLY,
    VerdictReason.EPOCH_UNFENCED,
    VerdictReason.MISSING_ACK,
    VerdictReason.MEMBERSHIP_INCOMPLETE,
    VerdictReason.DELETE_REFUSED,
}
"""Who never acked was never asked with a nonce either."""


def test_each_reason_stands_alone_between_some_trick_and_a_proof() -> None:
    """A verifier that left one out would be taken in."""
    alone = {next(iter(one.reasons)) for one in EXHIBITS if len(one.reasons) == 1}
    together = {reason for one in EXHIBITS for reason in one.reasons}
    assert set(VerdictReason) - SHOWN_ELSEWHERE <= together
    assert set(VerdictReason) - SHOWN_ELSEWHERE - NEVER_ALONE <= alone
