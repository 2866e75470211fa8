"""Signed notes, checkpoints and cosignatures as C2SP defines them. Pure; parsing is total and strict.

https://c2sp.org/signed-note, https://c2sp.org/tlog-checkpoint, https://c2sp.org/tlog-cosignature (the Ed25519
kinds). A note is text, an empty line, and signature lines; a checkpoint is a note whose text is a log's origin,
its size and its root; a cosignature is a witness's signature on a checkpoint, with the time it was given.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

from auditor.tree import HASH_BYTES
from events.chain import sha256
from events.errors import KvledgerError
from events.signing import Signer, verify

MAX_NOTE_BYTES = 64 * 1024
MAX_SIGNATURES = 64
MAX_SIZE = (1 << 63) - 1
_DASH = "\N{EM DASH} "
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


class NoteError(KvledgerError):
    """Bytes that are no note, checkpoint or key of the form that C2SP gives it; they say nothing at all."""


class KeyKind(IntEnum):
    """Signature types that are understood here; signatures of others are ignored, as notes demand."""

    ED25519 = 0x01
    COSIGNATURE = 0x04


@dataclass(frozen=True, slots=True)
class NoteKey:
    """Who may sign notes: a name, a 32-byte Ed25519 public key, and whether it signs or cosigns."""

    name: str
    public_key: bytes
    kind: KeyKind = KeyKind.ED25519

    @property
    def id(self) -> bytes:
        """Four bytes that stand for the key in signature lines: a hint, no proof of anything."""
        return sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.public_key)[:4]

    def __str__(self) -> str:
        """The key as a vkey, which people pass on: name, id and key joined by plus signs."""
        return f"{self.name}+{self.id.hex()}+{_encode(bytes([self.kind]) + self.public_key)}"


def parse_key(text: str) -> NoteKey:
    """A vkey. Raises NoteError unless its name can stand in a note and its id is that of its name and key."""
    parts = text.split("+", 2)
    if len(parts) != 3 or not is_name(parts[0]):
        raise NoteError("a key is name+id+base64")
    name, hint, packed = parts
    material = _decode(packed, "the key")
    if len(material) != 33 or material[0] not in set(KeyKind):
        raise NoteError("the key is neither Ed25519 nor an Ed25519 cosignature key")
    key = NoteKey(name, material[1:], KeyKind(material[0]))
    if key.id.hex() != hint:
        raise NoteError("the key's id is not that of its name and bytes")
    return key


def is_name(text: str) -> bool:
    """Whether a key may have this name: not empty, one line, no space of any script and no plus."""
    return bool(text) and "+" not in text and text.isprintable() and not any(sign.isspace() for sign in text)


@dataclass(frozen=True, slots=True)
class NoteSignature:
    """One signature line. `body` is what stands behind the key's id."""

    name: str
    id: bytes
    body: bytes

    def line(self) -> str:
        return f"{_DASH}{self.name} {_encode(self.id + self.body)}\n"


@dataclass(frozen=True, slots=True)
class Note:
    """Text that ends with a newline, and its signatures, none of them checked yet."""

    text: str
    signatures: tuple[NoteSignature, ...] = ()

    def to_bytes(self) -> bytes:
        return (self.text + "\n" + "".join(one.line() for one in self.signatures)).encode()

    def with_signatures(self, more: Iterable[NoteSignature]) -> Note:
        """The note with further signatures; those that it has already are not added twice."""
        return replace(self, signatures=tuple(dict.fromkeys((*self.signatures, *more))))

    def signed_by(self, key: NoteKey) -> bool:
        """Whether the key's signature is there and holds. Of several lines under its name and id none may fail."""
        mine = [one for one in self.signatures if (one.name, one.id) == (key.name, key.id)]
        return bool(mine) and all(_holds(key, one, self.text.encode()) for one in mine)


def parse_note(raw: bytes) -> Note:
    """Raises NoteError for whatever isn't a signed note with at least one signature line."""
    if len(raw) > MAX_NOTE_BYTES:
        raise NoteError(f"a note of more than {MAX_NOTE_BYTES} bytes")
    try:
        whole = raw.decode()
    except UnicodeDecodeError as error:
        raise NoteError("a note is UTF-8") from error
    if any(sign < " " and sign != "\n" for sign in whole):
        raise NoteError("a note has no control characters but newlines")
    text, gap, lines = whole.rpartition("\n\n")
    if not gap or not text or not lines.endswith("\n"):
        raise NoteError("a note is text, an empty line and signature lines")
    return Note(text + "\n", parse_signatures(lines))


def parse_signatures(lines: str) -> tuple[NoteSignature, ...]:
    """Signature lines, each ended by a newline. Raises NoteError."""
    found = [_parse_line(line) for line in lines.removesuffix("\n").split("\n")]
    if len(found) > MAX_SIGNATURES:
        raise NoteError(f"more than {MAX_SIGNATURES} signatures")
    return tuple(found)


def _parse_line(line: str) -> NoteSignature:
    name, space, packed = line.removeprefix(_DASH).partition(" ")
    if not line.startswith(_DASH) or not space or not is_name(name):
        raise NoteError("a signature line is an em dash, a name and base64")
    raw = _decode(packed, "a signature")
    if len(raw) < 5:
        raise NoteError("a signature has an id and a body")
    return NoteSignature(name, raw[:4], raw[4:])


def _holds(key: NoteKey, signature: NoteSignature, text: bytes) -> bool:
    if key.kind is KeyKind.ED25519:
        return verify(key.public_key, signature.body, text)
    given_s = cosigned_at(signature)
    return given_s is not None and verify(key.public_key, signature.body[8:], _cosigned(given_s, text))


def cosigned_at(signature: NoteSignature) -> int | None:
    """When a cosignature says it was given, in seconds since 1970; None if it isn't one by its form."""
    if len(signature.body) != 72:
        return None
    given_s = int.from_bytes(signature.body[:8], "big")
    return given_s if given_s <= MAX_SIZE else None


def _cosigned(given_s: int, text: bytes) -> bytes:
    return b"cosignature/v1\ntime %d\n" % given_s + text


def sign(text: str, key: NoteKey, signer: Signer) -> NoteSignature:
    """A log's own signature. `key` names the signer's public key."""
    return NoteSignature(key.name, key.id, signer.sign(text.encode()))


def cosign(text: str, key: NoteKey, signer: Signer, now_s: int) -> NoteSignature:
    """A witness's signature on a checkpoint's text, given at `now_s` (seconds since 1970)."""
    body = now_s.to_bytes(8, "big") + signer.sign(_cosigned(now_s, text.encode()))
    return NoteSignature(key.name, key.id, body)


@dataclass(frozen=True, slots=True)
class TreeHead:
    """What a checkpoint says: the log, how many leaves it has, and their root. Extensions aren't interpreted."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def text(self) -> str:
        return "".join(f"{one}\n" for one in (self.origin, self.size, _encode(self.root), *self.extensions))


def parse_head(text: str) -> TreeHead:
    """A checkpoint's text. Raises NoteError."""
    lines = text.removesuffix("\n").split("\n")
    if not text.endswith("\n") or len(lines) < 3 or not all(lines):
        raise NoteError("a checkpoint has an origin, a size and a root, each on a line of its own")
    origin, number, packed, *extensions = lines
    if not _NUMBER.fullmatch(number) or int(number) > MAX_SIZE:
        raise NoteError("a checkpoint's size is a decimal number below 2^63 without leading zeros")
    root = _decode(packed, "the root")
    if len(root) != HASH_BYTES:
        raise NoteError(f"a root has {HASH_BYTES} bytes")
    return TreeHead(origin, int(number), root, tuple(extensions))


def _encode(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _decode(text: str, what: str) -> bytes:
    """Standard base64 in its one canonical form, so that no two texts mean the same. Raises NoteError."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise NoteError(f"{what} is not base64") from error
    if _encode(raw) != text:
        raise NoteError(f"{what} is not base64 in its usual form")
    return raw
