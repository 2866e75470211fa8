"""The checked-in schemas are those of the models, and real records of every topic fit them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from events.topic import ALL
from kvledger.schema import LINES, RECORDS, documents
from tests.support.log import ControlLog, StreamBuilder, block, declared, opened, stored

FOLDER = Path("docs/schema")


def test_checked_in_schemas_are_the_models() -> None:
    made = documents()
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(made)
    for name, text in made.items():
        assert (FOLDER / name).read_text() == text, f"{name}: run python -m kvledger.schema"


def test_every_topic_says_what_its_records_are_made_of() -> None:
    assert list(LINES) == [topic.name for topic in ALL]
    assert {name for names in LINES.values() for name in names} | {"audit_statement"} == set(RECORDS)


def fits(name: str, line: bytes) -> None:
    schema: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(line))


def test_a_real_batch_fits_the_schemas_line_by_line() -> None:
    value = StreamBuilder().seal(opened(), events=[declared(), stored([block(1)])]).value
    for name, line in zip(LINES["kv.events"], value.split(b"\n"), strict=True):
        fits(name, line)


def test_real_control_records_fit_and_foreign_fields_do_not() -> None:
    for value, _ in ControlLog().records:
        for name, line in zip(LINES["kv.control"], value.split(b"\n"), strict=True):
            fits(name, line)
    head = json.loads(ControlLog().records[0][0].split(b"\n")[0]) | {"surprise": 1}
    with pytest.raises(jsonschema.ValidationError):
        fits("control_header", json.dumps(head).encode())
