"""The SQL in docs/archive.md runs on an archive as it is written, and gives the answers that stand below it."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest

from auditor.archive.store import FsspecStore
from auditor.archive.table import EVENTS, RECORDS
from events.chain import sha256
from events.codec import dump
from events.model.audit import SubjectBound
from tests.support.log import block
from tests.unit.auditor.archive.test_archive import made_log, run

PAGE = (Path(__file__).parents[4] / "docs" / "archive.md").read_text()
EXAMPLES = re.findall(r"```sql\n(.*?)```\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_every_documented_query_gives_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = SubjectBound(
        subject=sha256(b"patient 17"), domain="acme", leaves=(block("acme", 2), block("acme", 3))
    )
    run(made_log((dump(bound), bytes(64))), FsspecStore(str(tmp_path / "archive")))
    monkeypatch.chdir(tmp_path)
    assert len(EXAMPLES) == 6
    with duckdb.connect() as connection:
        for query, answer in EXAMPLES:
            rows = connection.execute(query).fetchall()
            told = [" | ".join("NULL" if one is None else str(one) for one in row) for row in rows]
            assert told == answer.splitlines(), query


def test_every_column_is_documented() -> None:
    listed = PAGE[PAGE.index("`records`: topic") :]
    for name in {*RECORDS.names, *EVENTS.names}:
        assert re.search(rf"\b{name}\b", listed), name
