"""A receipt is what its signer said, and nothing else."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from events.receipt import Receipt, make_receipt
from events.signing import Signer

SIGNER, OTHER = Signer.from_seed(bytes(32)), Signer.from_seed(bytes([1]) * 32)
GIVEN = make_receipt(
    SIGNER, log="log-1", number=7, kind="deletion_requested", record_sha256=bytes(32), repeated=False
)


def test_it_holds_under_the_key_that_signed_it_alone() -> None:
    assert GIVEN.holds(SIGNER.public_key)
    assert not GIVEN.holds(OTHER.public_key)
    assert not GIVEN.holds(b"short")
    assert Receipt.model_validate_json(GIVEN.model_dump_json()).holds(SIGNER.public_key)


@pytest.mark.parametrize(
    "change",
    [
        {"request": 8},
        {"kind": "limit_set"},
        {"log": "log-2"},
        {"record_sha256": "11" * 32},
        {"signer": OTHER.id},
        {"signature": "00" * 64},
        {"signature": "no hex"},
    ],
)
def test_nothing_signed_can_be_changed(change: dict[str, object]) -> None:
    assert not GIVEN.model_copy(update=change).holds(SIGNER.public_key)


def test_a_repeated_receipt_says_the_same_under_the_same_signature() -> None:
    again = make_receipt(
        SIGNER, log="log-1", number=7, kind="deletion_requested", record_sha256=bytes(32), repeated=True
    )
    assert again.signature == GIVEN.signature


def test_what_is_no_receipt_is_refused() -> None:
    with pytest.raises(ValidationError):
        Receipt.model_validate_json('{"request": "7"}')
