"""A bundle of each verdict, and how it is read for a paper."""

from __future__ import annotations

import io

import pypdf

from auditor.paper.sheet import Source
from auditor.proof import Predicate, read_statement, unseal
from events.chain import sha256
from tests.support.bundle import AUDITOR, OPERATOR, bundle
from tests.support.deletion_case import Fleet

GIVEN_MS = 1_796_041_112_000
"""2026-11-30, the auditor's clock of these proofs."""


def proven() -> Fleet:
    fleet = Fleet()
    fleet.finish()
    return fleet


def refuted() -> Fleet:
    fleet = proven()
    fleet.a.store("acme", 1, admitted=2)
    fleet.a.say_state()
    return fleet


def pending() -> Fleet:
    fleet = Fleet()
    fleet.finish(fleet.a)
    return fleet


def unprovable() -> Fleet:
    fleet = Fleet()
    fleet.log.fence(fleet.b)
    fleet.finish(fleet.a)
    return fleet


MAKERS = {"PROVEN": proven, "REFUTED": refuted, "PENDING": pending, "UNPROVABLE": unprovable}


def made(fleet: Fleet) -> tuple[bytes, Predicate]:
    raw = bundle(fleet.log, fleet.request, given_ms=GIVEN_MS)
    return raw, read_statement(unseal(raw.partition(b"\n")[0])[1]).predicate


def checked(raw: bytes) -> Source:
    return Source(
        sha256(raw).hex(), len(raw), "kvledger test", OPERATOR.public_key.hex(), "operator", signer=AUDITOR.id
    )


def unchecked(raw: bytes) -> Source:
    return Source(sha256(raw).hex(), len(raw), "kvledger test")


def pdf_text(raw: bytes) -> list[str]:
    return [page.extract_text() for page in pypdf.PdfReader(io.BytesIO(raw)).pages]
