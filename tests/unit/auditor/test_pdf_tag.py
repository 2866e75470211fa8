"""A PDF's tags: every text of the paper in one tree, in reading order, and nothing else in it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pypdf
import pytest
from pypdf.generic import ContentStream

from auditor.paper.element import Bars, Facts, Heading, Items, Notice, Paper, Paragraph, Table
from auditor.paper.pdf import to_pdf
from auditor.paper.sheet import proof_paper
from tests.support.paper_case import MAKERS, checked, made


def kids(node: Any) -> list[Any]:
    found = node.get("/K")
    found = found.get_object() if found is not None else []
    return [one.get_object() for one in (found if isinstance(found, list) else [found])]


def walk(node: Any) -> Iterator[Any]:
    """Every element of the tree, in reading order."""
    yield node
    for one in kids(node):
        if one.get("/Type") == "/StructElem":
            yield from walk(one)


def marks(node: Any) -> list[tuple[int, int]]:
    """(object number of the page, MCID) of an element's own texts."""
    return [(one.raw_get("/Pg").idnum, int(one["/MCID"])) for one in kids(node) if one.get("/Type") == "/MCR"]


def texts(reader: pypdf.PdfReader) -> list[list[int]]:
    """The numbers of each page's marked texts in the order in which they are drawn. Marks don't overlap, don't cut
    a text object, and everything that is drawn stands in one or is an artifact."""
    pages = []
    for page in reader.pages:
        numbers, open_, in_text = [], 0, False
        stream = ContentStream(page.get_contents(), reader)
        for operands, operator in stream.operations:
            if operator in (b"BDC", b"BMC"):
                assert not in_text
                open_ += 1
                if operator == b"BDC":
                    numbers.append(int(operands[1]["/MCID"]))
                else:
                    assert operands == ["/Artifact"]
            elif operator == b"EMC":
                assert not in_text
                open_ -= 1
            elif operator == b"BT":
                in_text = True
            elif operator == b"ET":
                in_text = False
            elif operator in (b"Tj", b"TJ", b"S", b"s", b"f", b"f*", b"B", b"n"):
                assert open_ == 1, operator
            assert open_ in (0, 1)
        assert open_ == 0
        pages.append(numbers)
    return pages


def checked_tree(document: bytes) -> list[Any]:
    """The elements of the tree, every mark of which is drawn once and leads back to its element."""
    reader = pypdf.PdfReader(io.BytesIO(document))
    root: Any = reader.trailer["/Root"]
    assert root["/MarkInfo"]["/Marked"].value is True
    assert root["/Lang"] == "en"
    tree = root["/StructTreeRoot"]
    (top,) = kids(tree)
    found = list(walk(top))
    drawn = texts(reader)
    numbers = list(tree["/ParentTree"]["/Nums"])
    back = {int(numbers[at]): numbers[at + 1].get_object() for at in range(0, len(numbers), 2)}
    wanted = set()
    for index, page in enumerate(reader.pages):
        assert page["/StructParents"] == index
        assert drawn[index] == list(range(len(back[index])))
        wanted |= {(page.indirect_reference.idnum, number) for number in drawn[index]}  # type: ignore[union-attr]
    told = [(mark, element) for element in found for mark in marks(element)]
    assert {mark for mark, _ in told} == wanted
    assert len(told) == len(wanted)
    places = {page.indirect_reference.idnum: index for index, page in enumerate(reader.pages)}  # type: ignore[union-attr]
    for (page_id, number), element in told:
        assert back[places[page_id]][number].get_object() == element
    return found


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_a_proofs_tree_has_every_text_in_reading_order(kind: str) -> None:
    raw, predicate = made(MAKERS[kind]())
    paper = proof_paper(predicate, checked(raw))
    found = checked_tree(to_pdf(paper))
    kinds = [str(one["/S"]) for one in found]
    expected = [
        f"/H{one.level}" if isinstance(one, Heading) else "/Table"
        for one in paper.elements
        if isinstance(one, Heading | Table | Facts | Bars)
    ]
    assert [one for one in kinds if one in ("/H2", "/H3", "/Table")] == expected
    assert (kinds[0], kinds[1], kinds.count("/H1")) == ("/Document", "/H1", 1)
    rows = sum(len(one.rows) + isinstance(one, Table) for one in paper.elements if hasattr(one, "rows"))
    assert kinds.count("/TR") == rows
    scopes = {str(one["/A"]["/Scope"]) for one in found if str(one["/S"]) == "/TH"}
    assert scopes == {"/Row", "/Column"}


def test_what_is_split_between_pages_stays_one_element_and_a_repeated_head_is_read_once() -> None:
    long = "word " * 3_000
    paper = Paper(
        "title",
        "running",
        [
            Notice("note", long, "bad"),
            Paragraph(long),
            Items([long, "short"]),
            Table("rows", ("first", "second"), [("name", "value")] * 120),
            Table("one row", ("first",), [(long,)]),
            Table("none", ("first",), []),
            Bars("none", []),
        ],
    )
    found = checked_tree(to_pdf(paper))
    heads = [one for one in found if str(one["/S"]) == "/TH"]
    assert all(len(marks(one)) == 1 for one in heads)
    split = [one for one in found if len(marks(one)) > 1]
    assert {str(one["/S"]) for one in split} >= {"/P", "/LBody", "/TD"}
    assert [str(one["/S"]) for one in found].count("/TR") == 1 + 120 + 1 + 1 + 1
