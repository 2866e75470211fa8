"""One text of a bundle has one meaning: what a lax reader would let pass is refused by both verifiers alike."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from auditor.line import BUNDLE, MAX_LINE, read_lines
from auditor.proof import BundleError, seal, unseal
from events.chain import sha256
from tests.support.bundle import AUDITOR, INVALID, OPERATOR, bundle, first_says, second_says
from tests.support.deletion_case import Fleet

Edit = Callable[[bytes], bytes]


def _lines() -> tuple[dict[str, object], list[bytes]]:
    fleet = Fleet()
    fleet.finish()
    first, _, body = bundle(fleet.log, fleet.request).partition(b"\n")
    return json.loads(unseal(first)[1]), [line for line in body.split(b"\n") if line]


STATEMENT, LINES = _lines()


def resigned(lines: list[bytes], statement: dict[str, object] | None = None) -> bytes:
    """A bundle of these lines, by an auditor who signs anything."""
    body = b"".join(line + b"\n" for line in lines)
    document = json.loads(json.dumps(statement or STATEMENT))
    document["subject"][1]["digest"]["sha256"] = sha256(body).hex()
    return seal(json.dumps(document).encode(), AUDITOR) + b"\n" + body


def said(made: bytes) -> tuple[str, str]:
    return first_says(made, OPERATOR.public_key), second_says(made, OPERATOR.public_key)


def _at(kind: str) -> int:
    return next(at for at, line in enumerate(LINES) if json.loads(line)["t"] == kind)


EDITS: dict[str, tuple[str, Edit]] = {
    "an unknown field": ("control", lambda line: line[:-1] + b',"zzz":1}'),
    "an unknown field of an event": ("event", lambda line: line[:-1] + b',"zzz":1}'),
    "a name twice": ("control", lambda line: line[:-1] + b',"o":0}'),
    "a part twice": ("event", lambda line: line.replace(b'"b":{', b'"b":{"0":"{\\"events\\":[]}",')),
    "another way to write a part's number": ("event", lambda line: line.replace(b'"b":{"0"', b'"b":{"00"')),
    "a number as text": ("control", lambda line: line.replace(b'"o":0', b'"o":"0"')),
    "a number with a point": ("control", lambda line: line.replace(b'"o":0', b'"o":0.0')),
    "a truth for a number": ("control", lambda line: line.replace(b'"o":0', b'"o":false')),
    "not a number": ("event", lambda line: line.replace(b'"p":2', b'"p":NaN')),
    "another partition's number": ("event", lambda line: line.replace(b'"p":2', b'"p":2.5')),
    "digits in capitals": ("key", lambda line: line[:-34].upper().lower() + line[-34:].upper()),
    "spaces between digits": ("key", lambda line: line.replace(b'"alias_key":"', b'"alias_key":" ')),
    "another encoding": ("control", lambda line: line.decode().encode("utf-16-le")),
    "a mark before it": ("control", lambda line: b"\xef\xbb\xbf" + line),
    "the format again": ("control", lambda line: LINES[0]),
    "no object": ("control", lambda line: b"[]"),
    "a kind of no text": ("control", lambda line: b'{"t":["control"]}'),
    "deep": ("control", lambda line: b"[" * 100_000),
    "long": ("control", lambda line: b'{"t":"' + b"x" * MAX_LINE + b'"}'),
}


def test_the_bundle_as_it_was_is_proven() -> None:
    assert said(resigned(LINES)) == ("PROVEN", "PROVEN")


@pytest.mark.parametrize("what", EDITS)
def test_a_line_that_could_be_read_in_two_ways_is_refused_by_both(what: str) -> None:
    kind, edit = EDITS[what]
    edited = list(LINES)
    edited[_at(kind)] = edit(edited[_at(kind)])
    assert edited != LINES
    assert said(resigned(edited)) == (INVALID, INVALID)


@pytest.mark.parametrize("where", ["holders", "reasons", "transfers", "counterexamples"])
def test_a_field_that_nobody_knows_in_the_statement_is_refused_by_both(where: str) -> None:
    statement = json.loads(json.dumps(STATEMENT))
    told = statement["predicate"]["verdict"][where]
    told.append({**(told[0] if told else {}), "zzz": 1})
    assert said(resigned(LINES, statement)) == (INVALID, INVALID)


def test_what_is_no_bundle_costs_no_more_than_a_line() -> None:
    nested = b'{"t":"leaf","p":[' + b"[]," * 1_000_000 + b"[]]}\n"
    with pytest.raises(BundleError, match="form"):
        read_lines(LINES[0] + b"\n" + nested + b"[" * 10_000_000, BUNDLE)
