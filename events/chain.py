"""The chain of one stream, the running hash of control, and inventory checksums: arithmetic on raw bytes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from events.ids import Alias

MODULUS = 1 << 128
CONTROL_HASH_START = hashlib.sha256(b"kvledger control log v1").digest()
"""The running hash before offset 0."""


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def split_lines(value: bytes) -> tuple[bytes, bytes]:
    """A raw record's header line and the rest, defined for any bytes, garbage too."""
    head, _, rest = value.partition(b"\n")
    return head, rest


def advance_control_hash(running: bytes, value: bytes, signature: bytes | None) -> bytes:
    """Running hash after one more raw control record: SHA-256 over the hash so far and the SHA-256 of the
    header line, of the rest and of the signature. A reader that has only headers and body hashes can follow."""
    head, rest = split_lines(value)
    return advance_control_hash_by_parts(running, sha256(head), sha256(rest), sha256(signature or b""))


def advance_control_hash_by_parts(
    running: bytes, head_sha256: bytes, body_sha256: bytes, signature_sha256: bytes
) -> bytes:
    """The same step from the three digests alone, for a reader that isn't shown a body."""
    return sha256(running + head_sha256 + body_sha256 + signature_sha256)


def alias(alias_key: bytes, worker: str, rank: int, epoch_no: int) -> Alias:
    """A domain's 16-byte name in one epoch (RFC 5869 HKDF-SHA256); without the key nobody links two of them."""
    info = f"kvledger alias v1|{worker}|{rank}|{epoch_no}".encode()
    return Alias(HKDF(algorithm=SHA256(), length=16, salt=None, info=info).derive(alias_key))


def store_alias(alias_key: bytes, durable_id: str) -> Alias:
    """A domain's 16-byte name in one durable store, for as long as there is the store (RFC 5869)."""
    info = f"kvledger store alias v1|{durable_id}".encode()
    return Alias(HKDF(algorithm=SHA256(), length=16, salt=None, info=info).derive(alias_key))


def _sum(ids: Collection[bytes]) -> int:
    """Sum of 16-byte big-endian numbers, by their halves: one unpack instead of one conversion an id."""
    halves: tuple[int, ...] = struct.unpack(f">{2 * len(ids)}Q", b"".join(ids))
    return (sum(halves[::2]) << 64) + sum(halves[1::2])


def transfer_digest(ids: Iterable[bytes]) -> bytes:
    """What `transfer_committed` carries: SHA-256 over the landed ids, ascending, one after the other."""
    return sha256(b"".join(sorted(ids)))


@dataclass(slots=True)
class Checksum:
    """Count and sum of ids (big endian) mod 2^128; finds accidents, no defence against a liar."""

    count: int = 0
    total: int = 0

    def add(self, ids: Collection[bytes]) -> None:
        self.count += len(ids)
        self.total = (self.total + _sum(ids)) % MODULUS

    def remove(self, ids: Collection[bytes]) -> None:
        self.count -= len(ids)
        self.total = (self.total - _sum(ids)) % MODULUS

    @property
    def value(self) -> bytes:
        return self.total.to_bytes(16, "big")

    def matches(self, count: int, checksum: bytes) -> bool:
        return self.count == count and self.value == checksum
