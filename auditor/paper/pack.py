"""A proof with its papers and tables in one ZIP file, to be filed or handed over as one. Pure.

The proof in it is the file that was audited, byte for byte; everything else is rendered from it and proves nothing.
The same files give the same ZIP.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The first date that a ZIP can name: what is packed says itself when it was made."""
_FILE_MODE = 0o644 << 16

READ_ME = """\
{title}

proof.jsonl     the proof itself, {size} bytes, SHA-256 {sha256}
{papers}
Only proof.jsonl proves anything; everything else here was rendered from it. Whoever relies on it checks that file
with a public key that comes from the operator himself, on a machine that needs no network:

    kvledger audit verify proof.jsonl --key KEY

or, without kvledger, with docs/verify_bundle.py of its source and the Python package `cryptography`.
"""


def to_zip(title: str, proof: bytes, sha256: str, papers: Mapping[str, bytes]) -> bytes:
    """`papers` by their names in the file (`proof.html`, `evidence/holders.csv`)."""
    kinds = {
        "proof.html": "proof.html      the same in words, for a browser\n",
        "proof.pdf": "proof.pdf       the same in words, for filing\n",
        "evidence/": "evidence/       the same as tables\n",
    }
    told = "".join(line for name, line in kinds.items() if any(paper.startswith(name) for paper in papers))
    read_me = READ_ME.format(title=title, size=len(proof), sha256=sha256, papers=told)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as pack:
        for name, raw in {"READ-ME.txt": read_me.encode(), "proof.jsonl": proof, **papers}.items():
            member = zipfile.ZipInfo(name, _EARLIEST)
            member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, _FILE_MODE
            pack.writestr(member, raw)
    return target.getvalue()
