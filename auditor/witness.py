"""What a witness does with a checkpoint that it is asked to cosign: the rule of C2SP's tlog-witness. Pure.

https://c2sp.org/tlog-witness. A witness remembers for each log the newest tree that it has cosigned, and cosigns
only what extends that one. It keeps no leaves and learns nothing of what is logged.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from auditor.checkpoint import (
    MAX_NOTE_BYTES,
    MAX_SIZE,
    Note,
    NoteError,
    NoteKey,
    TreeHead,
    parse_head,
    parse_note,
)
from auditor.tree import EMPTY_ROOT, HASH_BYTES, MAX_PROOF_HASHES, verify_consistency
from events.errors import KvledgerError

MAX_REQUEST_BYTES = MAX_NOTE_BYTES + 64 * 48
SIZE_TYPE = "text/x.tlog.size"
_OLD = re.compile(r"old (0|[1-9][0-9]{0,18})")


class RefusedError(KvledgerError):
    """A witness doesn't cosign. `status` is HTTP's; `size` is its tree's where that is the reason (409)."""

    def __init__(self, status: int, why: str, size: int | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.size = size


@dataclass(frozen=True, slots=True)
class AddCheckpoint:
    """A checkpoint, and the proof that it extends the tree of `old` leaves."""

    old: int
    proof: tuple[bytes, ...]
    note: Note

    def to_bytes(self) -> bytes:
        lines = [f"old {self.old}", *(base64.b64encode(one).decode() for one in self.proof)]
        return "".join(f"{line}\n" for line in lines).encode() + b"\n" + self.note.to_bytes()


def parse_request(body: bytes) -> AddCheckpoint:
    """The body of `POST /add-checkpoint`. Raises RefusedError with status 400."""
    lines, gap, checkpoint = body.partition(b"\n\n")
    try:
        first, *packed = lines.decode().split("\n")
        old = _OLD.fullmatch(first)
        if not gap or old is None or int(old[1]) > MAX_SIZE:
            raise RefusedError(400, "the body begins with the old size, a proof and an empty line")
        if len(packed) > MAX_PROOF_HASHES:
            raise RefusedError(400, f"a proof has at most {MAX_PROOF_HASHES} hashes")
        proof = tuple(base64.b64decode(line, validate=True) for line in packed)
        if any(len(one) != HASH_BYTES for one in proof):
            raise RefusedError(400, f"a hash of the proof has {HASH_BYTES} bytes")
        return AddCheckpoint(int(old[1]), proof, parse_note(checkpoint))
    except (UnicodeDecodeError, binascii.Error, ValueError, NoteError) as error:
        raise RefusedError(400, f"the body can't be read: {error}") from error


def examine(
    request: AddCheckpoint, logs: Mapping[str, Sequence[NoteKey]], newest: Mapping[str, TreeHead]
) -> TreeHead:
    """The head to cosign, and to remember first, by a log's known keys and the newest head that was cosigned for
    it. Raises RefusedError: 400 nonsense, 403 no known key signed it, 404 unknown log, 409 not the tree that is
    remembered (with that one's size where sizes differ), 422 the proof doesn't hold."""
    try:
        head = parse_head(request.note.text)
    except NoteError as error:
        raise RefusedError(400, str(error)) from error
    keys = logs.get(head.origin)
    if keys is None:
        raise RefusedError(404, "this log is not known here")
    if not any(request.note.signed_by(key) for key in keys):
        raise RefusedError(403, "no known key of this log has signed the checkpoint")
    if request.old > head.size:
        raise RefusedError(400, "the old size is above the checkpoint's")
    known = newest.get(head.origin)
    size = known.size if known is not None else 0
    if request.old != size:
        raise RefusedError(409, f"the newest checkpoint here has {size} leaves", size)
    if known is not None and head.size == size and head.root != known.root:
        raise RefusedError(409, "another tree of this size was cosigned before")
    if head.size == 0 and head.root != EMPTY_ROOT:
        raise RefusedError(422, "an empty tree has another root")
    root = known.root if known is not None else EMPTY_ROOT
    if not verify_consistency(size, head.size, request.proof, root, head.root):
        raise RefusedError(422, "the checkpoint doesn't extend the newest one here")
    return head
