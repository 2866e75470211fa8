"""Asks a witness to cosign a checkpoint: one exchange, and another where the witness remembers an older tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from auditor.checkpoint import MAX_SIZE, Note, NoteError, NoteKey, NoteSignature, parse_head, parse_signatures
from auditor.exchange import NoAnswerError, post
from auditor.witness import SIZE_TYPE, AddCheckpoint
from events.errors import KvledgerError

MAX_ANSWER_BYTES = 64 * 1024
Prove = Callable[[int], list[bytes]]
"""Old size -> consistency proof from there to the checkpoint; raises ValueError if there is none."""


class WitnessError(KvledgerError):
    """A witness gave no cosignature; the message says why, and what that may mean."""


@dataclass(frozen=True, slots=True)
class WitnessAddress:
    """Where a witness listens (its submission prefix), and the key whose cosignature is expected."""

    url: str
    key: NoteKey


def ask_witness(
    witness: WitnessAddress, note: Note, old: int, prove: Prove, timeout_s: float
) -> tuple[NoteSignature, ...]:
    """The witness's cosignatures on the checkpoint, checked. `old` is the size that it is thought to remember; if
    it says another, it is asked again from there. Blocking. Raises WitnessError."""
    size = parse_head(note.text).size
    answer, text, kind = _exchange(witness, note, old, prove, timeout_s)
    if answer == 409 and kind == SIZE_TYPE:
        known = _size(text)
        if known > size:
            raise WitnessError(
                f"{witness.key.name} has cosigned {known} leaves, this log has {size}: kv.audit lost records, or "
                "another history of this log is under way"
            )
        answer, text, kind = _exchange(witness, note, known, prove, timeout_s)
    if answer == 409 and kind != SIZE_TYPE:
        raise WitnessError(
            f"{witness.key.name} has cosigned another tree of {size} leaves: the history was split"
        )
    if answer == 422:
        raise WitnessError(f"{witness.key.name} has cosigned a tree that this one doesn't extend")
    if answer != 200:
        raise WitnessError(f"{witness.key.name} answers {answer}: {text.strip()[:200]}")
    try:
        signatures = parse_signatures(text)
    except NoteError as error:
        raise WitnessError(f"{witness.key.name} answers with no cosignature") from error
    mine = tuple(one for one in signatures if (one.name, one.id) == (witness.key.name, witness.key.id))
    if not Note(note.text, mine).signed_by(witness.key):
        raise WitnessError(f"{witness.key.name} answers with a cosignature that doesn't hold")
    return mine


def _exchange(
    witness: WitnessAddress, note: Note, old: int, prove: Prove, timeout_s: float
) -> tuple[int, str, str]:
    try:
        body = AddCheckpoint(old, tuple(prove(old)), note).to_bytes()
    except ValueError as error:
        raise WitnessError(f"{witness.key.name}: {error}") from error
    parts = urlsplit(witness.url)
    path = f"{parts.path.rstrip('/')}/add-checkpoint"
    try:
        status, raw, kind = post(parts, path, body, {}, timeout_s, MAX_ANSWER_BYTES)
    except NoAnswerError as error:
        raise WitnessError(f"{witness.key.name} at {witness.url} doesn't answer ({error})") from error
    return status, raw.decode(errors="replace"), kind


def _size(text: str) -> int:
    number = text.removesuffix("\n")
    if not number.isascii() or not number.isdigit() or len(number) > 19 or int(number) > MAX_SIZE:
        raise WitnessError("a witness answers 409 without its size")
    return int(number)
