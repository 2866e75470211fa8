"""A paper as one HTML file: no script, no network, everything escaped by the tree that it is written from. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element as Node
from xml.etree.ElementTree import SubElement, tostring

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

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 70rem; margin: 0 auto;
  padding: 1rem 1.5rem 3rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.25rem; margin-top: 2rem; border-bottom: 1px solid #767676; }
h3 { font-size: 1.05rem; margin-top: 1.5rem; }
aside { border: 1px solid #595959; border-left-width: .6rem; padding: .25rem 1rem; margin: 1rem 0; }
aside.good { border-color: #1b5e20; } aside.bad { border-color: #a30000; }
aside.waiting { border-color: #7a4f00; } aside.open { border-color: #3d3d8f; }
aside p.title { font-weight: 700; margin-bottom: 0; }
table { border-collapse: collapse; width: 100%; margin: .75rem 0 1.5rem; font-size: .875rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .35rem; }
th, td { border: 1px solid #9a9a9a; padding: .3rem .5rem; text-align: left; vertical-align: top; }
thead th { background: #eee; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
dl { display: grid; grid-template-columns: minmax(10rem, 18rem) 1fr; gap: .25rem 1rem; } dt { font-weight: 600; }
dd { margin: 0; } .bar { background: #3b5b92; height: .8rem; min-width: 1px; }
footer { margin-top: 3rem; border-top: 1px solid #767676; font-size: .875rem; }
@media print {
  @page { size: A4; margin: 18mm 15mm; }
  body { font-size: 10pt; max-width: none; padding: 0; } .scroll { overflow: visible; } table { font-size: 8pt; }
  thead { display: table-header-group; } tr, aside { break-inside: avoid; }
  h2, h3, caption, .leads { break-after: avoid; }
  .bar { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def to_html(paper: Paper) -> bytes:
    """The whole document, UTF-8."""
    root = Node("html", {"lang": "en"})
    head = SubElement(root, "head")
    SubElement(head, "meta", {"charset": "utf-8"})
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": POLICY})
    SubElement(head, "meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"})
    SubElement(head, "title").text = visible(paper.title)
    SubElement(head, "style").text = STYLE
    body = SubElement(root, "body")
    SubElement(SubElement(body, "header"), "h1").text = visible(paper.title)
    main = SubElement(body, "main")
    for element in paper.elements:
        _write(main, element)
    SubElement(SubElement(body, "footer"), "p").text = visible(paper.running)
    text: str = tostring(root, encoding="unicode", method="html")
    return f"<!DOCTYPE html>\n{text}\n".encode()


def _write(into: Node, element: Element) -> None:
    match element:
        case Heading():
            SubElement(into, f"h{element.level}").text = visible(element.text)
        case Paragraph():
            paragraph = SubElement(into, "p", {"class": "leads"} if element.leads else {})
            paragraph.text = visible(element.text)
        case Items():
            listed = SubElement(into, "ul")
            for item in element.items:
                SubElement(listed, "li").text = visible(item)
        case Notice():
            box = SubElement(into, "aside", {"class": element.tone, "role": "note"})
            SubElement(box, "p", {"class": "title"}).text = visible(element.title)
            SubElement(box, "p").text = visible(element.text)
        case Facts():
            facts = SubElement(into, "dl")
            for name, value in element.rows:
                SubElement(facts, "dt").text = visible(name)
                SubElement(facts, "dd").text = visible(value)
        case Table():
            _table(into, element)
        case Bars():
            _bars(into, element)


def _table(into: Node, table: Table) -> None:
    # A region that scrolls sideways has to be reachable by keyboard and named.
    around = SubElement(
        into,
        "div",
        {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": visible(table.caption)},
    )
    body = _head(around, table.caption, table.columns)
    for row in table.rows:
        line = SubElement(body, "tr")
        for at, cell in enumerate(row):
            if at == 0:
                SubElement(line, "th", {"scope": "row"}).text = visible(cell)
            else:
                SubElement(line, "td").text = visible(cell)


def _bars(into: Node, bars: Bars) -> None:
    top = max((number for _, number, _ in bars.rows), default=0)
    body = _head(SubElement(into, "figure"), bars.caption, ("", "Number", "Drawn to scale", "Meaning"))
    for label, number, meaning in bars.rows:
        line = SubElement(body, "tr")
        SubElement(line, "th", {"scope": "row"}).text = visible(label)
        SubElement(line, "td", {"class": "number"}).text = f"{number:,}"
        share = 100 * number / top if top else 0
        cell = SubElement(line, "td", {"aria-hidden": "true"})
        if number:
            SubElement(cell, "div", {"class": "bar", "style": f"width: {share:.1f}%"})
        SubElement(line, "td").text = visible(meaning)


def _head(into: Node, caption: str, columns: Sequence[str]) -> Node:
    table = SubElement(into, "table")
    SubElement(table, "caption").text = visible(caption)
    head = SubElement(SubElement(table, "thead"), "tr")
    for column in columns:
        if column:
            SubElement(head, "th", {"scope": "col"}).text = visible(column)
        else:
            SubElement(head, "td")
    return SubElement(table, "tbody")
