"""A bundle's evidence as tables: for a spreadsheet as CSV, for SQL as Parquet (extra `report`).

Tables repeat what the file shows, line by line; they decide nothing and were checked if the bundle was.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from auditor.line import BUNDLE, read_lines
from auditor.paper.element import visible
from auditor.paper.sheet import Source
from auditor.proof import BundleError, Predicate
from events.chain import alias
from events.codec import decode_header
from events.errors import KvledgerError

Kind = Literal["text", "number", "flag"]
Cell = str | int | bool | None
Row = tuple[Cell, ...]
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Ledger:
    """One table: `columns` are names and kinds; every row has a cell for each, None where it says nothing."""

    columns: Sequence[tuple[str, Kind]]
    rows: list[Row] = field(default_factory=list)

    def to_csv(self) -> bytes:
        """RFC 4180 with a header line, UTF-8. A text that a spreadsheet would take for a formula gets an apostrophe
        before it; control characters are written out."""
        into = io.StringIO()
        writer = csv.writer(into, lineterminator="\r\n")
        writer.writerow([name for name, _ in self.columns])
        writer.writerows([_plain(cell) for cell in row] for row in self.rows)
        return into.getvalue().encode()

    def to_parquet(self) -> bytes:
        """Raises ModuleNotFoundError without pyarrow."""
        import pyarrow as arrow
        from pyarrow import parquet

        kinds = {"text": arrow.string(), "number": arrow.int64(), "flag": arrow.bool_()}
        schema = arrow.schema([(name, kinds[kind]) for name, kind in self.columns])
        columns = (
            [_surrogates(column) for column in zip(*self.rows, strict=True)]
            if self.rows
            else [[]] * len(schema)
        )
        arrays = [arrow.array(column, one.type) for column, one in zip(columns, schema, strict=True)]
        into = io.BytesIO()
        parquet.write_table(arrow.Table.from_arrays(arrays, schema=schema), into)
        return into.getvalue()


def _plain(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, int):
        return str(cell)
    text = visible(cell)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _surrogates(column: Iterable[Cell]) -> list[Cell]:
    """JSON can carry halves of characters, which no encoding of text can."""
    return [
        cell.encode("utf-8", "backslashreplace").decode() if isinstance(cell, str) else cell
        for cell in column
    ]


TEXT: Kind = "text"
NUMBER: Kind = "number"
FLAG: Kind = "flag"


def bundle_tables(raw: bytes, predicate: Predicate, source: Source) -> dict[str, Ledger]:
    """Every table of a bundle by name. Raises BundleError for lines that are no evidence."""
    try:
        lines = read_lines(raw.partition(b"\n")[2], BUNDLE)
        return {
            "about": _about(predicate, source),
            "control": _control(lines),
            "records": _records(lines),
            "facts": _facts(lines),
            "segments": _segments(lines),
            **_findings(predicate),
        }
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
        KvledgerError,
    ) as error:
        raise BundleError(f"the evidence is garbled ({type(error).__name__})") from error


def _about(predicate: Predicate, source: Source) -> Ledger:
    verdict = predicate.verdict
    return Ledger(
        (("name", TEXT), ("value", TEXT)),
        [
            ("log", predicate.log),
            ("request", str(verdict.request)),
            ("verdict", verdict.kind.value),
            ("bundle_sha256", source.sha256),
            ("verified", "yes" if source.verified else "no"),
            ("verified_with_key", source.key or None),
            ("made_by", source.program),
            ("signed_with_key", source.signer or None),
            ("given_ms", None if predicate.given_ms is None else str(predicate.given_ms)),
        ],
    )


def _control(lines: Iterable[Mapping[str, Any]]) -> Ledger:
    columns = (
        ("offset", NUMBER), ("kind", TEXT), ("signer", TEXT), ("role", TEXT), ("written_ms", NUMBER), ("shown", TEXT),
        ("body", TEXT), ("header", TEXT), ("digests", TEXT),
    )  # fmt: skip
    found = Ledger(columns)
    for line in lines:
        if line["t"] != "control":
            continue
        if "d" in line:
            found.rows.append((line["o"], None, None, None, None, "digests", None, None, " ".join(line["d"])))
            continue
        head = _object(line["h"])
        shown = "whole" if "b" in line else "header"
        found.rows.append(
            (
                line["o"],
                *(_text(head.get(name)) for name in ("kind", "signer", "role")),
                _number(head.get("written_ms")),
                shown,
                line.get("b"),
                line["h"],
                None,
            )
        )
    return found


def _records(lines: Iterable[Mapping[str, Any]]) -> Ledger:
    columns = (
        ("partition", NUMBER), ("offset", NUMBER), ("shown", TEXT), ("worker", TEXT), ("rank", NUMBER), ("epoch", TEXT),
        ("epoch_no", NUMBER), ("seq", NUMBER), ("control_offset", NUMBER), ("parts", NUMBER), ("parts_shown", NUMBER),
        ("signed", FLAG), ("why", TEXT),
    )  # fmt: skip
    found = Ledger(columns)
    for line in lines:
        if line["t"] not in ("event", "unreadable", "stranger", "leaf"):
            continue
        where = (line["p"], line["o"], line["t"])
        worker, rank, epoch = line.get("stream") or (None, None, None)
        seq, why = line.get("seq"), line.get("reason")
        if line["t"] != "event":
            found.rows.append((*where, worker, rank, epoch, None, seq, None, None, None, None, why))
            continue
        head = decode_header(str(line["h"]).encode())
        found.rows.append(
            (
                *where,
                head.worker,
                head.rank,
                head.epoch,
                head.epoch_no,
                head.seq,
                head.control.offset,
                len(head.parts),
                len(line["b"]),
                line["s"] is not None,
                None,
            )
        )
    return found


def _facts(lines: Sequence[Mapping[str, Any]]) -> Ledger:
    """What the shown parts say, one row for each event; `domain` is empty for those of a whole stream."""
    columns = (
        ("partition", NUMBER), ("offset", NUMBER), ("worker", TEXT), ("rank", NUMBER), ("seq", NUMBER),
        ("part", NUMBER), ("domain", TEXT), ("type", TEXT), ("holder", TEXT), ("blocks", NUMBER), ("request", NUMBER),
        ("admitted_after", NUMBER), ("event", TEXT),
    )  # fmt: skip
    keys = {str(line["domain"]): bytes.fromhex(line["alias_key"]) for line in lines if line["t"] == "key"}
    found = Ledger(columns)
    for line in lines:
        if line["t"] != "event":
            continue
        head = decode_header(str(line["h"]).encode())
        names: dict[bytes, str] = {
            alias(key, head.worker, head.rank, head.epoch_no): name for name, key in keys.items()
        }
        for index, body in sorted((int(index), str(body)) for index, body in line["b"].items()):
            known = head.parts[index].alias
            domain = None if known is None else names.get(known, known.hex())
            for event in _object(body)["events"]:
                found.rows.append(
                    (line["p"], line["o"], head.worker, head.rank, head.seq, index, domain, *_event(event))
                )
    return found


def _event(event: Mapping[str, Any]) -> Iterator[Cell]:
    ids = event.get("ids")
    yield _text(event.get("type"))
    yield _text(event.get("holder"))
    yield len(ids) * 3 // 4 // 16 if isinstance(ids, str) else None
    yield _number(event.get("request"))
    yield _number(event.get("admitted_after"))
    yield json.dumps(event, separators=(",", ":"))


def _segments(lines: Iterable[Mapping[str, Any]]) -> Ledger:
    names: tuple[tuple[str, Kind], ...] = (
        ("i", NUMBER), ("topic", TEXT), ("partition", NUMBER), ("first", NUMBER), ("next", NUMBER), ("records", NUMBER),
        ("root", TEXT),
    )  # fmt: skip
    shown = (line for line in lines if line["t"] == "segment")
    return Ledger(names, [tuple(line[name] for name, _ in names) for line in shown])


def _findings(predicate: Predicate) -> dict[str, Ledger]:
    verdict = predicate.verdict
    named = {
        "conditions": [{"condition": name, "finding": told} for name, told in verdict.conditions.items()],
        "reasons": [one.model_dump(mode="json") for one in verdict.reasons],
        "counterexamples": [one.model_dump(mode="json") for one in verdict.counterexamples],
        "holders": [one.model_dump(mode="json") for one in verdict.holders],
        "transfers": [one.model_dump(mode="json") for one in verdict.transfers],
        "timeline": [one.model_dump(mode="json") for one in predicate.timeline],
        "attestations": [one.model_dump(mode="json") for one in predicate.attestations or ()],
        "holds": [one.model_dump(mode="json") for one in predicate.holds or ()],
    }
    return {name: _listed(rows) for name, rows in named.items() if rows}


def _listed(rows: Sequence[Mapping[str, Any]]) -> Ledger:
    """Records of one model as rows; a list is written as JSON."""
    names = list(rows[0])
    cells = [
        tuple(json.dumps(value) if isinstance(value, list) else value for value in row.values())
        for row in rows
    ]
    kinds: list[Kind] = [_kind(column) for column in zip(*cells, strict=True)]
    return Ledger(list(zip(names, kinds, strict=True)), cells)


def _kind(column: Iterable[Cell]) -> Kind:
    first = next((cell for cell in column if cell is not None), "")
    return "flag" if isinstance(first, bool) else "number" if isinstance(first, int) else "text"


def _object(text: Any) -> Mapping[str, Any]:
    found = json.loads(str(text))
    if not isinstance(found, dict):
        raise TypeError("no object")
    return found


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63 else None
