"""Tags for a PDF: what is a heading, a paragraph, a list, a table, in reading order, for screen readers (ISO 32000-1,
14.7 and 14.8). ReportLab writes none; here each text marks its part of a page and names its place in one tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from reportlab.pdfbase.pdfdoc import PDFArray, PDFDictionary, PDFName
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Paragraph as Text

OUTSIDE = "/Artifact BMC"
"""Whatever no text marks (lines, boxes, bars, bullets, what stands at the foot of a page) isn't read out."""


@dataclass(slots=True, eq=False)
class Node:
    """One element of the tree; `kind` is a standard structure type. `marks`: (page, number on it) of its texts.
    `scope`: of a header cell. `once`: repeated on later pages, where it isn't read again."""

    kind: str
    scope: str = ""
    once: bool = False
    children: list[Node] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)

    def add(self, kind: str, **more: Any) -> Node:
        """A new last child."""
        made = Node(kind, **more)
        self.children.append(made)
        return made


class TaggedText(Text):  # type: ignore[misc]
    """A paragraph that belongs to `node`, whole or split between pages."""

    def __init__(self, *parts: Any, node: Node | None = None, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.node = node

    def split(self, width: float, height: float) -> Any:
        made = super().split(width, height)
        for part in made:
            part.node = self.node
        return made

    def draw(self) -> None:
        canvas, node = self.canv, self.node
        page = canvas.getPageNumber() - 1
        if node is None or (node.once and any(known != page for known, _ in node.marks)):
            super().draw()
            return
        number = canvas.mark(node)
        canvas.operator(f"EMC /{node.kind} <</MCID {number}>> BDC")
        super().draw()
        canvas.operator(f"EMC {OUTSIDE}")


class TaggedCanvas(Canvas):  # type: ignore[misc]
    """Gathers what was marked on each page; `tree` is written behind the pages."""

    def __init__(self, *parts: Any, tree: Node, **more: Any) -> None:
        self._tree = tree
        self._marked: list[list[Node]] = [[]]
        super().__init__(*parts, **more)
        self.setViewerPreference("DisplayDocTitle", "true")

    def mark(self, node: Node) -> int:
        """The number under which a text of the node stands on this page."""
        here = self._marked[-1]
        here.append(node)
        node.marks.append((len(self._marked) - 1, len(here) - 1))
        return len(here) - 1

    def operator(self, code: str) -> None:
        self._code.append(code)

    def showPage(self) -> None:
        self._code.insert(0, OUTSIDE)
        self._code.append("EMC")
        super().showPage()
        page = self._doc.Pages.pages[-1]
        page.__NoDefault__ = [*page.__NoDefault__, "StructParents", "Tabs"]
        page.StructParents, page.Tabs = len(self._marked) - 1, PDFName("S")
        self._marked.append([])

    def save(self) -> None:
        if self._code:
            self.showPage()
        self._write_tree()
        super().save()

    def _write_tree(self) -> None:
        document = self._doc
        root = PDFDictionary({"Type": PDFName("StructTreeRoot")})
        above = document.Reference(root, "structure")
        written: dict[int, Any] = {}
        root["K"] = self._element(self._tree, above, written)
        nums: list[Any] = []
        for number, nodes in enumerate(self._marked[:-1]):
            nums += [number, document.Reference(PDFArray([written[id(node)] for node in nodes]))]
        root["ParentTree"] = document.Reference(PDFDictionary({"Nums": PDFArray(nums)}))
        root["ParentTreeNextKey"] = len(self._marked) - 1
        document.Catalog.StructTreeRoot = root
        document.Catalog.MarkInfo = PDFDictionary({"Marked": "true"})

    def _element(self, node: Node, above: Any, written: dict[int, Any]) -> Any:
        document = self._doc
        made = PDFDictionary({"Type": PDFName("StructElem"), "S": PDFName(node.kind), "P": above})
        here = written[id(node)] = document.Reference(made, f"element{len(written)}")
        if node.scope:
            made["A"] = PDFDictionary({"O": PDFName("Table"), "Scope": PDFName(node.scope)})
        kids: list[Any] = [
            PDFDictionary(
                {"Type": PDFName("MCR"), "Pg": document.Reference(document.Pages.pages[page]), "MCID": number}
            )
            for page, number in node.marks
        ]
        made["K"] = PDFArray([*kids, *(self._element(one, here, written) for one in node.children)])
        return here
