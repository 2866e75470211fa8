"""The lines of a bundle or report, read strictly: one text has one meaning, whatever reads it. Pure.

UTF-8, one object a line, no name twice in one object, no number but whole ones, no field that isn't described in
`docs/audit.md`. A line is checked as soon as it is read, and its length is bounded, so that what isn't a bundle costs
little.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from auditor.proof import BundleError
from events.model.field import MAX_COUNT
from events.topic import MAX_RECORD_BYTES

MAX_LINE = 16 * MAX_RECORD_BYTES
"""Bytes; a record of the greatest size, each byte of it escaped, fits."""
_INDEX = re.compile(r"0|[1-9][0-9]{0,18}")
_DIGITS = re.compile(r"[0-9a-f]*")

Check = Callable[[Any], bool]
Form = tuple[Mapping[str, Check], Mapping[str, Check]]
"""Fields that a line has, and those that it may have."""


def _number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _text(value: Any) -> bool:
    return type(value) is str


def _hex(value: Any) -> bool:
    return type(value) is str and _DIGITS.fullmatch(value) is not None


def _hexes(value: Any) -> bool:
    return type(value) is list and all(_hex(one) for one in value)


def _signature(value: Any) -> bool:
    return value is None or type(value) is str


def _texts(value: Any) -> bool:
    return type(value) is list and all(type(one) is str for one in value)


def _digests(value: Any) -> bool:
    return _hexes(value) and len(value) == 3


def _bodies(value: Any) -> bool:
    return type(value) is dict and all(_INDEX.fullmatch(at) and type(one) is str for at, one in value.items())


def _starts(value: Any) -> bool:
    return type(value) is dict and all(_INDEX.fullmatch(at) and _number(one) for at, one in value.items())


def _stream(value: Any) -> bool:
    return type(value) is list and [type(one) for one in value] == [str, int, str]


def _ignored(value: Any) -> bool:
    kinds = {"why": str, "broken": bool, "unread": bool}
    return type(value) is dict and {name: type(one) for name, one in value.items()} == kinds


def _passed_over(value: Any) -> bool:
    return _ignored(value) and not value["broken"] and not value["unread"]


_ANCHOR: Form = (
    {"note": _text, "witnesses": _texts, "quorum": _number, "hashes": _hexes, "said": _texts},
    {"stamp": _text},
)
_SEGMENT: Form = (
    {
        **{name: _number for name in ("i", "partition", "first", "next", "records")},
        "topic": _text,
        "root": _hex,
    },
    {},
)
_PLACE: dict[str, Check] = {"p": _number, "o": _number}
_LEAF: dict[str, Check] = {"l": _hex}
BUNDLE: Mapping[str, tuple[Form, ...]] = {
    "format": (({"version": _number, "request": _number, "starts": _starts}, {}),),
    "anchor": (_ANCHOR,),
    "segment": (_SEGMENT,),
    "key": (({"domain": _text, "alias_key": _hex}, {}),),
    "bound": (({"ids": _text}, {}),),
    "subjects": (({"cut": _number, "missing": _number}, {}),),
    "control": (
        ({"o": _number, "h": _text, "s": _signature}, {"b": _text}),
        ({"o": _number, "h": _text, "s": _signature, "i": _passed_over}, {}),
        ({"o": _number, "d": _digests}, {"i": _ignored}),
    ),
    "event": ((_PLACE | {"h": _text, "s": _signature, "b": _bodies}, {"r": _hex}),),
    "unreadable": ((_PLACE | {"stream": _stream, "seq": _number, "x": _hex, "reason": _text}, _LEAF),),
    "stranger": ((_PLACE | {"stream": _stream}, _LEAF),),
    "leaf": ((_PLACE | _LEAF, {}),),
}
REPORT: Mapping[str, tuple[Form, ...]] = {
    "format": (({"version": _number, "first": _number, "next": _number}, {}),),
    "anchor": (_ANCHOR,),
    "segment": (_SEGMENT,),
    "control": (
        ({"o": _number, "h": _text, "s": _signature}, {"b": _text}),
        ({"o": _number, "v": _text, "s": _signature}, {}),
    ),
    "verdict": (({"o": _number, "v": lambda value: type(value) is dict}, {}),),
}


def read_lines(body: bytes, forms: Mapping[str, tuple[Form, ...]]) -> list[dict[str, Any]]:
    """Every line of the evidence. Raises BundleError, and ValueError or RecursionError for what is no JSON."""
    lines: list[dict[str, Any]] = []
    for raw in _split(body):
        line = json.loads(raw.decode(), object_pairs_hook=_once, parse_float=_no, parse_constant=_no)
        kind = line.get("t") if type(line) is dict else None
        known = forms.get(kind) if type(kind) is str else None
        if known is None:
            raise BundleError("the evidence holds a line of an unknown kind")
        if not any(_fits(line, form) for form in known):
            raise BundleError(f"a line of the evidence has not the form of «{kind}»")
        if (kind == "format") != (not lines):
            raise BundleError("the evidence has an unknown format")
        lines.append(line)
    return lines


def _split(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        end = body.find(b"\n", at, at + MAX_LINE + 1)
        if end < 0:
            if len(body) - at > MAX_LINE:
                raise BundleError(f"a line of the evidence is longer than {MAX_LINE} bytes")
            end = len(body)
        if end > at:
            yield body[at:end]
        at = end + 1


def _fits(line: Mapping[str, Any], form: Form) -> bool:
    needed, allowed = form
    names = line.keys() - {"t"}
    if not needed.keys() <= names or not names <= needed.keys() | allowed.keys():
        return False
    return all((needed.get(name) or allowed[name])(line[name]) for name in names)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise BundleError("a line of the evidence gives a name twice")
    return made


def _no(number: str) -> Any:
    raise BundleError(f"a line of the evidence has a number that isn't whole: {number[:20]}")
