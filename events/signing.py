"""Ed25519 signatures over header lines; keys are named in logs by their id alone.

RFC 8032 through `cryptography`. A private key file holds 32 raw bytes in hex.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from events.errors import SignatureError
from events.ids import KeyId

Verify = Callable[[bytes, bytes, bytes], bool]
"""(public key, signature, message) -> whether it holds; injected into folds."""


def key_id(public_key: bytes) -> KeyId:
    """First 16 hex characters of the SHA-256 of a 32-byte public key."""
    return KeyId(hashlib.sha256(public_key).hexdigest()[:16])


@dataclass(frozen=True, slots=True, repr=False)
class Signer:
    """A private key that never shows itself: `repr` and errors hold its id only."""

    _private: Ed25519PrivateKey
    public_key: bytes
    id: KeyId

    @classmethod
    def from_seed(cls, seed: bytes) -> Signer:
        """From 32 secret bytes; raises SignatureError if they are not 32."""
        if len(seed) != 32:
            raise SignatureError("private_key_malformed")
        private = Ed25519PrivateKey.from_private_bytes(seed)
        public = private.public_key().public_bytes_raw()
        return cls(private, public, key_id(public))

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)

    def __repr__(self) -> str:
        return f"Signer({self.id})"


def verify(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether `signature` is the key's over `message`; malformed keys and signatures are just false."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
