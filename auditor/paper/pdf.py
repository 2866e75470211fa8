"""A paper as PDF, with ReportLab (extra `report`). The HTML is the form for screen readers; this one is for files."""

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
from reportlab.platypus import Paragraph as Text
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

    story = [Text(_marked(paper.title), _style(16, bold=True, after=6))]
    for element in paper.elements:
        story += _flow(element)
    document.build(story, onFirstPage=foot, onLaterPages=foot)
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


def _cell(text: str, *, bold: bool = False, right: bool = False) -> Any:
    return Text(_marked(text), _style(7, bold=bold, after=0, right=right))


def _flow(element: Element) -> Iterator[Any]:
    match element:
        case Heading():
            yield CondPageBreak(40 * mm)
            yield Spacer(1, 8 if element.level == 2 else 4)
            yield Text(_marked(element.text), _style(12 if element.level == 2 else 10, bold=True))
        case Paragraph():
            yield CondPageBreak(18 * mm if element.leads else 0)
            yield Text(_marked(element.text), _style(9))
        case Items():
            yield ListFlowable(
                [ListItem(Text(_marked(item), _style(9, after=1))) for item in element.items],
                bulletType="bullet",
                start="•",
            )
            yield Spacer(1, 4)
        case Notice():
            tint = TONES[element.tone]
            text = [
                Text(_marked(element.title), _style(11, bold=True, tint=tint)),
                Text(_marked(element.text), _style(9)),
            ]
            box = Grid([[text]], colWidths=[WIDTH], splitInRow=1, spaceAfter=6, hAlign="LEFT")
            box.setStyle([("BOX", (0, 0), (-1, -1), 0.6, tint), ("LINEBEFORE", (0, 0), (0, -1), 5, tint)])
            yield box
        case Facts():
            rows = [[_cell(name, bold=True), _cell(value)] for name, value in element.rows]
            yield _grid(rows, [60 * mm, WIDTH - 60 * mm], head=False)
        case Table():
            yield from _caption(element.caption)
            head = [[_cell(column, bold=True) for column in element.columns]]
            yield _grid([*head, *([_cell(cell) for cell in row] for row in element.rows)], _widths(element))
        case Bars():
            yield from _caption(element.caption)
            if element.rows:
                yield _bars(element)


def _caption(text: str) -> Iterator[Any]:
    """Never the last line of a page."""
    yield CondPageBreak(28 * mm)
    yield Text(_marked(text), _style(8, bold=True))


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


def _bars(bars: Bars) -> Any:
    top = max((number for _, number, _ in bars.rows), default=0)
    rows: list[list[Any]] = []
    for label, number, meaning in bars.rows:
        drawn: Any = ""
        if number and top:
            drawn = Grid([[""]], colWidths=[max(1.0, BAR * number / top)], rowHeights=[7], hAlign="LEFT")
            drawn.setStyle([("BACKGROUND", (0, 0), (-1, -1), colors.HexColor(0x3B5B92))])
        rows.append([_cell(label, bold=True), _cell(f"{number:,}", right=True), drawn, _cell(meaning)])
    return _grid(rows, [50 * mm, 20 * mm, BAR + 6 * mm, WIDTH - 76 * mm - BAR], head=False)
