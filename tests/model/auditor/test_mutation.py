"""Bytes of a proven bundle changed; all of them in all ways by `python -m tests.model.auditor.mutation`."""

from __future__ import annotations

import random
import secrets

from events.ids import VerdictKind
from tests.model.auditor.mutation import (
    SIGNERS,
    WAYS,
    WORD,
    attempts,
    judged,
    proven,
    resigned,
    structural,
)
from tests.support.bundle import AUDITOR, INVALID


def test_no_structural_byte_can_be_changed() -> None:
    places = structural(proven())
    assert len(places) > 300
    outcome = attempts(places, ["other"], "as it is")
    assert (outcome.wrong, outcome.total) == ([], len(places))


def test_no_byte_drawn_at_random_can_be_changed_by_anybody() -> None:
    """Other bytes in each run; a failure names them."""
    rng = random.Random(secrets.randbits(64))
    for name in SIGNERS:
        places = rng.sample(range(len(proven())), 60)
        outcome = attempts(places, [rng.choice(WAYS)], name)
        assert outcome.wrong == [], name
        assert set(outcome.word) <= WORD
        assert outcome.invalid > 0


def test_who_signs_evidence_again_must_hold_an_auditors_key() -> None:
    for name, signer in SIGNERS.items():
        if signer is not None:
            again = resigned(proven(), signer)
            assert again is not None
            assert judged(again) == (VerdictKind.PROVEN if signer is AUDITOR else INVALID), name


def test_a_bundle_whose_lines_are_cut_moved_or_another_logs_is_invalid() -> None:
    made = proven()
    lines = made.split(b"\n")
    rng = random.Random(1)
    for _ in range(25):
        first, second = sorted(rng.sample(range(len(lines) - 1), 2))
        swapped = list(lines)
        swapped[first], swapped[second] = swapped[second], swapped[first]
        for spoilt in (
            swapped,
            lines[:second],
            lines[:first] + lines[first + 1 :],
            [*lines[:second], *lines[first:]],
        ):
            assert judged(b"\n".join(spoilt)) == INVALID
