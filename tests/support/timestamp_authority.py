"""A time-stamping authority of the tests' own: real keys and certificates, real RFC 3161 answers over real HTTP.

The DER is written here: `cryptography` signs no TSTInfo. https://www.rfc-editor.org/rfc/rfc3161, rfc5652, rfc5035.
"""

from __future__ import annotations

import hashlib
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from rfc3161_client._rust import parse_timestamp_request

SHA256 = "2.16.840.1.101.3.4.2.1"
ECDSA_SHA256 = "1.2.840.10045.4.3.2"
SIGNED_DATA, TST_INFO = "1.2.840.113549.1.7.2", "1.2.840.113549.1.9.16.1.4"
CONTENT_TYPE, MESSAGE_DIGEST = "1.2.840.113549.1.9.3", "1.2.840.113549.1.9.4"
SIGNING_CERTIFICATE = "1.2.840.113549.1.9.16.2.47"
POLICY = "1.3.6.1.4.1.32473.1"


def der(tag: int, *content: bytes) -> bytes:
    body = b"".join(content)
    if len(body) < 128:
        return bytes([tag, len(body)]) + body
    size = len(body).to_bytes((len(body).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(size)]) + size + body


def integer(value: int) -> bytes:
    return der(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    out = bytes([40 * first + second])
    for arc in rest:
        septets = [arc & 0x7F]
        while arc := arc >> 7:
            septets.append(0x80 | arc & 0x7F)
        out += bytes(reversed(septets))
    return der(0x06, out)


def sequence(*content: bytes) -> bytes:
    return der(0x30, *content)


def set_of(*content: bytes) -> bytes:
    return der(0x31, *sorted(content))


def octets(raw: bytes) -> bytes:
    return der(0x04, raw)


def attribute(kind: str, value: bytes) -> bytes:
    return sequence(oid(kind), set_of(value))


class TimestampAuthority:
    """`with TimestampAuthority() as tsa`: answers at `tsa.url`; `tsa.root` is the PEM certificate to trust. `spoil` is
    put in place of the next answers' imprint; `refuse` answers with a rejection; `chain` has it send its root's
    certificate, too, before or behind its own."""

    def __init__(
        self, name: str = "Test TSA", now: datetime = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
    ) -> None:
        self.now, self.refuse, self.imprint, self.asked = now, False, b"", 0
        self.chain: Literal["", "before", "behind"] = ""
        root_key, self._key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        root = _certificate(f"{name} root", f"{name} root", root_key, root_key, now, is_root=True)
        self._certificate = _certificate(name, f"{name} root", self._key, root_key, now, is_root=False)
        self.root, self._root = root.public_bytes(Encoding.PEM), root.public_bytes(Encoding.DER)

    def stamp(self, imprint: bytes, nonce: int | None) -> bytes:
        """A TimeStampResp over a SHA-256."""
        number = integer(nonce) if nonce is not None else b""
        info = sequence(
            integer(1),
            oid(POLICY),
            sequence(sequence(oid(SHA256), der(0x05)), octets(imprint)),
            integer(7),
            der(0x18, self.now.strftime("%Y%m%d%H%M%SZ").encode()),
            number,
        )
        raw = self._certificate.public_bytes(Encoding.DER)
        attributes = sorted(
            [
                attribute(CONTENT_TYPE, oid(TST_INFO)),
                attribute(MESSAGE_DIGEST, octets(hashlib.sha256(info).digest())),
                attribute(
                    SIGNING_CERTIFICATE, sequence(sequence(sequence(octets(hashlib.sha256(raw).digest()))))
                ),
            ]
        )
        signature = self._key.sign(der(0x31, *attributes), ec.ECDSA(hashes.SHA256()))
        signer = sequence(
            integer(1),
            sequence(self._certificate.issuer.public_bytes(), integer(self._certificate.serial_number)),
            sequence(oid(SHA256)),
            der(0xA0, *attributes),
            sequence(oid(ECDSA_SHA256)),
            octets(signature),
        )
        signed = sequence(
            integer(3),
            set_of(sequence(oid(SHA256))),
            sequence(oid(TST_INFO), der(0xA0, octets(info))),
            der(0xA0, *self._sent(raw)),
            set_of(signer),
        )
        token = sequence(oid(SIGNED_DATA), der(0xA0, signed))
        return sequence(sequence(integer(0)), token)

    def _sent(self, own: bytes) -> tuple[bytes, ...]:
        sent = {"": (own,), "before": (self._root, own), "behind": (own, self._root)}
        return sent[self.chain]

    def answer(self, query: bytes) -> bytes:
        """To a TimeStampReq's bytes."""
        self.asked += 1
        if self.refuse:
            return sequence(sequence(integer(2)))
        request = parse_timestamp_request(query)
        return self.stamp(self.imprint or request.message_imprint.message, request.nonce)

    def __enter__(self) -> TimestampAuthority:
        authority = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                query = self.rfile.read(int(self.headers["Content-Length"]))
                raw = authority.answer(query)
                self.send_response(200)
                self.send_header("Content-Type", "application/timestamp-reply")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/tsa"


def _certificate(
    subject: str,
    issuer: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    now: datetime,
    *,
    is_root: bool,
) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=is_root, path_length=None), critical=True)
    )
    if not is_root:
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING])
        builder = builder.add_extension(usage, critical=True)
    return builder.sign(signer, hashes.SHA256())
