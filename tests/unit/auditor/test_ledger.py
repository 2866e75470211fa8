"""A bundle's evidence as CSV and Parquet, and no other tenant in any document that is made of a bundle."""

from __future__ import annotations

import base64
import csv
import io
import json

import pyarrow.parquet as parquet
import pytest

from auditor.paper.html import to_html
from auditor.paper.ledger import Ledger, bundle_tables
from auditor.paper.pdf import to_pdf
from auditor.paper.sheet import proof_paper
from auditor.proof import BundleError
from events.chain import sha256
from events.ids import Role
from events.model.control import DeletionRequested, TenantScope
from events.model.part import Cleared
from tests.support.deletion_case import Fleet
from tests.support.log import block
from tests.support.paper_case import checked, made, pdf_text, proven, unchecked


def full() -> Fleet:
    """Two tenants, a foreign request with a principal, garbage, a fence and a reset."""
    fleet = Fleet()
    fleet.log.say(
        DeletionRequested(scope=TenantScope(tenant="umbrella"), requester="umbrella-operator"),
        Role.CONTROL,
        idempotency_key="k1",
        key_scope="umbrella-operator",
    )
    fleet.log.control.records.append((b"garbage of umbrella", None))
    fleet.a.write(Cleared(holders=("gpu",)))
    fleet.a.held.clear()
    fleet.finish()
    return fleet


def test_tables_repeat_the_evidence_line_by_line() -> None:
    fleet = full()
    raw, predicate = made(fleet)
    tables = bundle_tables(raw, predicate, checked(raw))
    assert len(tables["control"].rows) == len(fleet.log.control.records)
    assert len(tables["records"].rows) == sum(map(len, fleet.log.events.values()))
    read = list(csv.DictReader(io.StringIO(tables["facts"].to_csv().decode())))
    removed = [row for row in read if row["type"] == "block_invalidated"]
    assert [(row["worker"], row["domain"], row["blocks"], row["request"]) for row in removed] == [
        (fleet.b.worker, "acme", "3", str(fleet.request))
    ]
    assert {row["domain"] for row in read} == {"", "acme", "acme/eu"}
    about = dict(list(csv.reader(io.StringIO(tables["about"].to_csv().decode()))))
    assert (about["verdict"], about["verified"], about["bundle_sha256"]) == (
        "PROVEN",
        "yes",
        sha256(raw).hex(),
    )
    unknown = bundle_tables(raw, predicate, unchecked(raw))["about"]
    assert ("verified", "no") in unknown.rows


def test_parquet_holds_what_csv_holds_with_its_types() -> None:
    raw, predicate = made(full())
    for name, table in bundle_tables(raw, predicate, checked(raw)).items():
        read = parquet.read_table(io.BytesIO(table.to_parquet()))
        assert read.column_names == [column for column, _ in table.columns], name
        assert [tuple(row.values()) for row in read.to_pylist()] == table.rows, name


def test_an_empty_table_keeps_its_columns() -> None:
    empty = Ledger((("offset", "number"), ("name", "text")))
    assert empty.to_csv() == b"offset,name\r\n"
    assert parquet.read_table(io.BytesIO(empty.to_parquet())).num_rows == 0


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@sum(a)", "\tx"])
def test_no_text_is_a_formula(cell: str) -> None:
    read = list(csv.reader(io.StringIO(Ledger((("a", "text"),), [(cell,)]).to_csv().decode())))
    assert not read[1][0].startswith(("=", "+", "-", "@", "\t"))
    assert parquet.read_table(io.BytesIO(Ledger((("a", "text"),), [(cell,)]).to_parquet())).to_pylist() == [
        {"a": cell}
    ]


def test_no_other_tenant_is_in_any_document() -> None:
    raw, predicate = made(full())
    paper = proof_paper(predicate, checked(raw))
    tables = bundle_tables(raw, predicate, checked(raw)).values()
    documents = [to_html(paper), "".join(pdf_text(to_pdf(paper))).encode()]
    documents += [table.to_csv() for table in tables]
    documents += [
        json.dumps(parquet.read_table(io.BytesIO(table.to_parquet())).to_pylist()).encode()
        for table in tables
    ]
    foreign = [b"umbrella"]
    for name in (1, 2):
        foreign += [block("umbrella", name).hex().encode(), base64.b64encode(block("umbrella", name))[:20]]
    for document in documents:
        assert not [one for one in foreign if one in document]


@pytest.mark.parametrize(
    "body",
    [
        b"[]\n",
        b'{"t":"control"}\n',
        b'{"t":"event","p":0,"o":0,"h":"{}","s":null,"b":{}}\n',
        b"\xff\n",
        b"{\n",
    ],
)
def test_garbled_evidence_makes_no_table(body: bytes) -> None:
    raw, predicate = made(proven())
    with pytest.raises(BundleError):
        bundle_tables(raw.partition(b"\n")[0] + b"\n" + body, predicate, unchecked(raw))
