"""A paper as PDF, with ReportLab (extra `report`), tagged for screen readers."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from typing import Any
from xml.sax.saxutils import escape

from reportlab.lib import colors
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.pagesizes import A4, landscape
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.platypus import CondPageBreak, ListFlowable, ListItem, SimpleDocTemplate, Spacer
from reportlab.platypus import Table as Grid

from auditor.paper.element import (
    Bars,
    Element,
    Facts,
    Heading,
    Items,
    Notice,
    Paper,
    Paragraph,
    Table,
    visible,
)
from auditor.paper.pdf_tag import Node, TaggedCanvas, TaggedText

PLAIN, STRONG = "Vera", "VeraBd"
MARGIN = 15 * mm
PAGE = landscape(A4)
INSET = 6
"""What a frame leaves free at either side, in points."""
WIDTH = PAGE[0] - 2 * (MARGIN + INSET)
BAR = 60 * mm
TONES = {
    "good": colors.HexColor(0x1B5E20),
    "bad": colors.HexColor(0xA30000),
    "waiting": colors.HexColor(0x7A4F00),
    "open": colors.HexColor(0x3D3D8F),
}
LINE = ("GRID", (0, 0), (-1, -1), 0.4, colors.HexColor(0x9A9A9A))
TIGHT = [
    ("VALIGN", (0, 0), (-1, -1), "TOP"),
    *((f"{side}PADDING", (0, 0), (-1, -1), 3) for side in ("LEFT", "RIGHT")),
]


def to_pdf(paper: Paper) -> bytes:
    """The whole document. The same paper gives the same bytes."""
    _fonts()
    into = io.BytesIO()
    document = SimpleDocTemplate(
        into,
        pagesize=PAGE,
        leftMargin=MARGIN,
        rightMargin=MARGIN,
        topMargin=MARGIN,
        bottomMargin=MARGIN + 6 * mm,
        title=_safe(paper.title),
        author="kvledger",
        lang="en",
        invariant=1,
    )

    def foot(canvas: Any, page: Any) -> None:
        canvas.saveState()
        canvas.setFont(PLAIN, 7)
        canvas.drawString(MARGIN + INSET, MARGIN, _safe(paper.running))
        canvas.drawRightString(PAGE[0] - MARGIN - INSET, MARGIN, f"page {page.page}")
        canvas.restoreState()

    tree = Node("Document")
    story = [_text(paper.title, _style(16, bold=True, after=6), tree.add("H1"))]
    for element in paper.elements:
        story += _flow(element, tree)

    def canvas_of(*parts: Any, **more: Any) -> TaggedCanvas:
        return TaggedCanvas(*parts, tree=tree, **more)

    document.build(story, onFirstPage=foot, onLaterPages=foot, canvasmaker=canvas_of)
    return into.getvalue()


@cache
def _fonts() -> None:
    for name in (PLAIN, STRONG):
        pdfmetrics.registerFont(TTFont(name, f"{name}.ttf"))


def _safe(text: str) -> str:
    """What the font can't draw is written out, so that no name looks empty or like another."""
    known = pdfmetrics.getFont(PLAIN).face.charToGlyph
    return "".join(sign if ord(sign) in known else f"\\u{{{ord(sign):x}}}" for sign in visible(text))


def _marked(text: str) -> str:
    return escape(_safe(text))


@cache
def _style(
    size: float,
    *,
    bold: bool = False,
    after: float = 3,
    right: bool = False,
    tint: Any = None,
) -> Any:
    style = ParagraphStyle(
        f"{size}{bold}{after}{right}{tint}",
        fontName=STRONG if bold else PLAIN,
        fontSize=size,
        leading=size * 1.35,
        spaceAfter=after,
        wordWrap=None if bold and size > 9 else "CJK",
        textColor=tint or colors.black,
    )
    if right:
        style.alignment = TA_RIGHT
    return style


def _text(text: str, style: Any, node: Node) -> Any:
    return TaggedText(_marked(text), style, node=node)


def _cell(text: str, node: Node, *, bold: bool = False, right: bool = False) -> Any:
    return _text(text, _style(7, bold=bold, after=0, right=right), node)


def _flow(element: Element, tree: Node) -> Iterator[Any]:
    match element:
        case Heading():
            yield CondPageBreak(40 * mm)
            yield Spacer(1, 8 if element.level == 2 else 4)
            style = _style(12 if element.level == 2 else 10, bold=True)
            yield _text(element.text, style, tree.add(f"H{element.level}"))
        case Paragraph():
            yield CondPageBreak(18 * mm if element.leads else 0)
            yield _text(element.text, _style(9), tree.add("P"))
        case Items():
            list_ = tree.add("L")
            style = _style(9, after=1)
            yield ListFlowable(
                [ListItem(_text(item, style, list_.add("LI").add("LBody"))) for item in element.items],
                bulletType="bullet",
                start="•",
            )
            yield Spacer(1, 4)
        case Notice():
            tint, note = TONES[element.tone], tree.add("Div")
            text = [
                _text(element.title, _style(11, bold=True, tint=tint), note.add("P")),
                _text(element.text, _style(9), note.add("P")),
            ]
            box = Grid([[text]], colWidths=[WIDTH], splitInRow=1, spaceAfter=6, hAlign="LEFT")
            box.setStyle([("BOX", (0, 0), (-1, -1), 0.6, tint), ("LINEBEFORE", (0, 0), (0, -1), 5, tint)])
            yield box
        case Facts():
            table, rows = tree.add("Table"), []
            for name, value in element.rows:
                line = table.add("TR")
                rows.append(
                    [_cell(name, line.add("TH", scope="Row"), bold=True), _cell(value, line.add("TD"))]
                )
            yield _grid(rows, [60 * mm, WIDTH - 60 * mm], head=False)
        case Table():
            table = tree.add("Table")
            yield from _caption(element.caption, table)
            line = table.add("TR")
            rows = [
                [
                    _cell(column, line.add("TH", scope="Column", once=True), bold=True)
                    for column in element.columns
                ]
            ]
            for cells in element.rows:
                line = table.add("TR")
                rows.append([_cell(cell, line.add("TD")) for cell in cells])
            yield _grid(rows, _widths(element))
        case Bars():
            table = tree.add("Table")
            yield from _caption(element.caption, table)
            if element.rows:
                yield _bars(element, table)


def _caption(text: str, table: Node) -> Iterator[Any]:
    """Never the last line of a page."""
    yield CondPageBreak(28 * mm)
    yield _text(text, _style(8, bold=True), table.add("Caption"))


def _grid(rows: list[list[Any]], widths: list[float], *, head: bool = True) -> Any:
    grid = Grid(
        rows, colWidths=widths, repeatRows=1 if head else 0, splitInRow=1, spaceAfter=8, hAlign="LEFT"
    )
    shade = [("BACKGROUND", (0, 0), (-1, 0), colors.HexColor(0xEEEEEE))] if head else []
    grid.setStyle([LINE, *TIGHT, *shade])
    return grid


def _widths(table: Table) -> list[float]:
    """By how much text a column holds, none narrower than a twentieth of the page."""
    sizes = [
        min(60, max(len(column), *(len(row[at]) for row in table.rows), 6)) if table.rows else len(column)
        for at, column in enumerate(table.columns)
    ]
    least = WIDTH / 20
    free = WIDTH - least * len(sizes)
    return [least + free * size / max(1, sum(sizes)) for size in sizes]


def _bars(bars: Bars, table: Node) -> Any:
    top = max((number for _, number, _ in bars.rows), default=0)
    rows: list[list[Any]] = []
    for label, number, meaning in bars.rows:
        drawn: Any = ""
        if number and top:
            drawn = Grid([[""]], colWidths=[max(1.0, BAR * number / top)], rowHeights=[7], hAlign="LEFT")
            drawn.setStyle([("BACKGROUND", (0, 0), (-1, -1), colors.HexColor(0x3B5B92))])
        line = table.add("TR")
        named = _cell(label, line.add("TH", scope="Row"), bold=True)
        count = _cell(f"{number:,}", line.add("TD"), right=True)
        rows.append([named, count, drawn, _cell(meaning, line.add("TD"))])
    return _grid(rows, [50 * mm, 20 * mm, BAR + 6 * mm, WIDTH - 76 * mm - BAR], head=False)
