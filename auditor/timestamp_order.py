"""A time stamp's certificates in the order that strict readers want. Pure.

RFC 5652 lets an authority send the certificates of its SignedData in any order (BER), and many do; DER sorts a SET OF,
and the library reads nothing else. They are outside of what is signed, so sorting them changes no signature.
"""

from __future__ import annotations

from collections.abc import Iterator

SEQUENCE = 0x30
CERTIFICATES, CONTENT = 0xA0, 0xA0


class _NotDerError(ValueError):
    """Not bytes of definite lengths."""


def in_order(response: bytes) -> bytes:
    """The TimeStampResp with its certificates sorted as DER has it; the very bytes where there is nothing to sort, or
    where it is of another form: whoever decodes it says so."""
    try:
        return _response(response)
    except (_NotDerError, IndexError):
        return response


def _response(raw: bytes) -> bytes:
    whole = _only(raw, SEQUENCE)
    status, token = _parts(whole, 2)
    kind, content = _parts(_only(token, SEQUENCE), 2)
    signed = list(_elements(_only(_only(content, CONTENT), SEQUENCE)))
    at = next((n for n, one in enumerate(signed) if one[0] == CERTIFICATES), None)
    if at is None:
        return raw
    signed[at] = _made(CERTIFICATES, *sorted(_elements(_only(signed[at], CERTIFICATES))))
    data = _made(CONTENT, _made(SEQUENCE, *signed))
    return _made(SEQUENCE, status, _made(SEQUENCE, kind, data))


def _elements(content: bytes) -> Iterator[bytes]:
    """Each element's whole bytes, in order."""
    while content:
        size = _size(content)
        yield content[:size]
        content = content[size:]


def _parts(content: bytes, count: int) -> list[bytes]:
    found = list(_elements(content))
    if len(found) != count:
        raise _NotDerError
    return found


def _only(raw: bytes, tag: int) -> bytes:
    """The content of the one element that these bytes are."""
    if raw[0] != tag or _size(raw) != len(raw):
        raise _NotDerError
    return raw[2 + (raw[1] & 0x7F if raw[1] > 0x80 else 0) :]


def _size(raw: bytes) -> int:
    """Bytes of the first element, with its tag and length."""
    length, head = raw[1], 2
    if length > 0x80:
        head += length & 0x7F
        length = int.from_bytes(raw[2:head])
    if raw[1] == 0x80 or raw[0] & 0x1F == 0x1F or head + length > len(raw):
        raise _NotDerError
    return head + length


def _made(tag: int, *content: bytes) -> bytes:
    body = b"".join(content)
    if len(body) < 0x80:
        return bytes([tag, len(body)]) + body
    size = len(body).to_bytes((len(body).bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(size)]) + size + body
