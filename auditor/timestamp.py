"""RFC 3161 time stamps of a checkpoint's text (extra `timestamp`): asked for, read, and checked against the authority's
certificate. https://www.rfc-editor.org/rfc/rfc3161

A stamp says that the checkpoint existed at a time, by the word of an authority outside. No condition and no verdict
rests on it: a bad one is named and takes nothing else away.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.utils import CryptographyDeprecationWarning
from rfc3161_client import (
    HashAlgorithm,
    TimestampRequestBuilder,
    TimeStampResponse,
    VerificationError,
    VerifierBuilder,
    decode_timestamp_response,
)

from auditor.exchange import NoAnswerError, post
from auditor.proof import StampStated
from auditor.timestamp_order import in_order
from events.chain import sha256
from events.errors import KvledgerError

MAX_STAMP_BYTES = 64 * 1024
QUERY, REPLY = "application/timestamp-query", "application/timestamp-reply"
SHA256 = "2.16.840.1.101.3.4.2.1"
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, x509.InvalidVersion)


class StampError(KvledgerError):
    """A time stamp that was not given or doesn't hold; the message says why. What it was to stamp stands without."""


@dataclass(frozen=True, slots=True)
class Authority:
    """Certificates that vouch for a time-stamping authority, roots and others, as they were given."""

    certificates: tuple[x509.Certificate, ...]

    @classmethod
    def from_pem(cls, pem: bytes) -> Authority:
        """Raises StampError for anything but PEM certificates."""
        try:
            found = tuple(x509.load_pem_x509_certificates(pem))
        except ValueError as error:
            raise StampError("the authority's certificate is no PEM certificate") from error
        return cls(found)


def ask(url: str, text: str, authority: Authority, timeout_s: float) -> bytes:
    """The authority's stamp of the text, checked, as DER (a TimeStampResp). Blocking. Raises StampError."""
    request = TimestampRequestBuilder().data(text.encode()).hash_algorithm(HashAlgorithm.SHA256).build()
    raw = _exchange(url, request.as_bytes(), timeout_s)
    _check(_decode(raw), text, authority, request.nonce)
    return raw


def _exchange(url: str, query: bytes, timeout_s: float) -> bytes:
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        headers = {"Content-Type": QUERY, "Accept": REPLY}
        status, raw, _ = post(parts, path, query, headers, timeout_s, MAX_STAMP_BYTES + 1)
    except NoAnswerError as error:
        raise StampError(f"the time-stamping authority at {url} doesn't answer ({error})") from error
    if status != 200 or len(raw) > MAX_STAMP_BYTES:
        raise StampError(f"the time-stamping authority at {url} answers {status}, {len(raw)} bytes")
    return raw


@contextmanager
def _any_number() -> Iterator[None]:
    """Old roots have the number 0, which RFC 5280 forbids and the library warns of: no reason to doubt a stamp."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        yield


def _decode(raw: bytes) -> TimeStampResponse:
    try:
        stamp = decode_timestamp_response(in_order(raw))
        if stamp.status != 0:
            raise StampError(
                f"the authority refused: status {stamp.status} {' '.join(stamp.status_string)}".strip()
            )
        stamp.tst_info.gen_time  # noqa: B018 - raises where there is no token
    except _UNREADABLE as error:
        raise StampError("the stamp is no RFC 3161 response") from error
    return stamp


def _check(stamp: TimeStampResponse, text: str, authority: Authority, nonce: int | None) -> None:
    info = stamp.tst_info
    if info.message_imprint.hash_algorithm.dotted_string != SHA256:
        raise StampError("the stamp isn't over a SHA-256")
    if info.message_imprint.message != sha256(text.encode()):
        raise StampError("the stamp is of another checkpoint")
    builder = VerifierBuilder(roots=list(authority.certificates))
    if nonce is not None:
        builder = builder.nonce(nonce)
    try:
        with _any_number():
            builder.build().verify(stamp, info.message_imprint.message)
    except VerificationError as error:
        raise StampError("the stamp is not signed by this authority") from error
    except _UNREADABLE as error:
        raise StampError(f"the stamp can't be checked ({type(error).__name__})") from error


def read_stamp(raw: bytes, text: str) -> StampStated:
    """What a stamp of the text says of itself, its signature not looked at. Raises StampError."""
    stamp = _decode(raw)
    info = stamp.tst_info
    if info.message_imprint.hash_algorithm.dotted_string != SHA256:
        raise StampError("the stamp isn't over a SHA-256")
    if info.message_imprint.message != sha256(text.encode()):
        raise StampError("the stamp is of another checkpoint")
    return StampStated(
        authority=_signer(stamp), time=info.gen_time.isoformat(), policy=info.policy.dotted_string
    )


def _signer(stamp: TimeStampResponse) -> str:
    """The name of the certificate that signed; its issuer and number where the stamp doesn't bring it."""
    try:
        (signer,) = stamp.signed_data.signer_infos
        with _any_number():
            for raw in stamp.signed_data.certificates:
                certificate = x509.load_der_x509_certificate(raw)
                if (certificate.issuer, certificate.serial_number) == (signer.issuer, signer.serial_number):
                    return certificate.subject.rfc4514_string()
        return f"number {signer.serial_number} of {signer.issuer.rfc4514_string()}"
    except _UNREADABLE as error:
        raise StampError("the stamp doesn't say who signed it") from error


def check_stamp(raw: bytes, text: str, authority: Authority) -> StampStated:
    """What a stamp says, if this authority signed it over this text. Raises StampError."""
    stated = read_stamp(raw, text)
    _check(_decode(raw), text, authority, None)
    return stated
