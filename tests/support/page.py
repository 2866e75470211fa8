"""Reads an HTML page as a browser would, so that what is markup and what is text can be told apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}
SILENT = {"style", "script", "title"}


@dataclass
class Page(HTMLParser):
    """`tags` in order, `attributes` of all of them, `text` of the body; `faults` where an end fits no beginning."""

    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str | None]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in SILENT:
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.pieces).split())


def read_page(raw: bytes) -> Page:
    page = Page()
    page.feed(raw.decode())
    page.close()
    page.faults += page._open
    return page
