"""Receipts: whoever wrote a control record says, under its signature, that the record was read back."""

from __future__ import annotations

from typing import Any

import rfc8785
from pydantic import BaseModel, ConfigDict

from events.signing import Signer, key_id, verify
from events.token import Token


class Receipt(BaseModel):
    """Says under the control key's signature that the order is in the log: its number, the SHA-256 of its raw
    record, the log's id. `signature` is Ed25519 over the RFC 8785 JSON of the other fields but `token` and
    `repeated`. `token` given as `min_token` makes a lookup reflect the order."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    request: int
    kind: str
    log: str
    record_sha256: str
    signer: str
    signature: str
    token: str
    repeated: bool = False

    def stated(self) -> dict[str, Any]:
        """What is signed."""
        return self.model_dump(include={"request", "kind", "log", "record_sha256", "signer"})

    def holds(self, public_key: bytes) -> bool:
        """Whether this public key (32 bytes) signed it. Needs nothing but the receipt and the key."""
        try:
            signature = bytes.fromhex(self.signature)
        except ValueError:
            return False
        signed = verify(public_key, signature, rfc8785.dumps(self.stated()))
        return signed and key_id(public_key) == self.signer


def make_receipt(
    signer: Signer, *, log: str, number: int, kind: str, record_sha256: bytes, repeated: bool
) -> Receipt:
    """The signed receipt of the control record with this number, which must have been read back."""
    stated: dict[str, Any] = {
        "request": number,
        "kind": kind,
        "log": log,
        "record_sha256": record_sha256.hex(),
        "signer": signer.id,
    }
    return Receipt(
        **stated,
        signature=signer.sign(rfc8785.dumps(stated)).hex(),
        token=Token(log, (), number + 1).encode(),
        repeated=repeated,
    )
