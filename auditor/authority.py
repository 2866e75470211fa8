"""Whose records of `kv.control` count: a granted key's signature over them, in a role that may say such a thing, and
each order once, where its signer put it. Written apart from the index's registry."""

from __future__ import annotations

from dataclasses import dataclass, field

from auditor.grant import KeyGrant
from events.ids import KeyId, Role
from events.model.control import ROLE_OF_KIND, ControlBody, ControlHeader, Genesis, Granted, Revoked
from events.signing import Verify, key_id

COPIED = "repeated_record"


@dataclass(slots=True)
class Authority:
    """Of each record ask, in offset order: `copied`, `unauthorised`, `count`, which give why it is ignored, "" if it
    isn't; then tell it of the genesis record, grants and revocations that are obeyed."""

    verify: Verify
    log: str = ""
    operator_key: bytes = b""
    grants: dict[KeyId, KeyGrant] = field(default_factory=dict)
    _keys_used: set[tuple[str, str]] = field(default_factory=set)
    _signed: set[bytes] = field(default_factory=set)

    def begin(self, body: Genesis) -> None:
        self.log, self.operator_key = body.log, body.operator_key
        self.grants[key_id(body.operator_key)] = KeyGrant(body.operator_key, frozenset({Role.OPERATOR}))

    def grant(self, body: Granted) -> None:
        """The newest grant of a key is the one that stands."""
        signer = key_id(body.public_key)
        self.grants[signer] = KeyGrant.of(body, self.grants.get(signer))

    def revoke(self, offset: int, body: Revoked) -> str:
        grant = self.grants.get(key_id(body.public_key))
        if grant is None or body.public_key == self.operator_key:
            return "not_revocable"
        grant.revoked_at = offset
        return ""

    def copied(self, head_sha256: bytes) -> str:
        """The header line has stood in the log before under a signature that held. Anybody who can write to the topic
        can write it again: an order counts where its signer put it, and nowhere else."""
        return COPIED if head_sha256 in self._signed else ""

    def unauthorised(
        self,
        offset: int,
        header: ControlHeader,
        line: bytes,
        signature: bytes | None,
        body: ControlBody | None,
    ) -> str:
        """Its signer may not say it, or hasn't; `body` None: it isn't shown."""
        if signature is None:
            return "unsigned"
        if header.role not in ROLE_OF_KIND.get(header.kind, frozenset()):
            return "wrong_role"
        if isinstance(body, Genesis):
            if offset != 0:
                return "second_genesis"
            if key_id(body.operator_key) != header.signer or header.log != body.log:
                return "genesis_malformed"
            return "" if self.verify(body.operator_key, signature, line) else "bad_signature"
        if header.log != self.log:
            return "foreign_log" if self.log else "no_genesis"
        why = self.why_not(KeyId(header.signer), header.role, body)
        if why:
            return why
        key = self.grants[KeyId(header.signer)].public_key
        return "" if self.verify(key, signature, line) else "bad_signature"

    def why_not(self, signer: KeyId, role: Role, body: ControlBody | None) -> str:
        """Why a record behind the first, if this key signs it now, is ignored for its signer's sake; "" if it isn't."""
        grant = self.grants.get(signer)
        if grant is None:
            return "unknown_signer"
        if grant.revoked_at is not None:
            return "revoked_signer"
        if role not in grant.roles:
            return "role_not_granted"
        return "" if grant.reaches(body) else "outside_grant"

    def signed_by_ours(self, line: bytes, signature: bytes | None) -> bool:
        """Whether any key that was ever granted, revoked ones too, signed a header line that can't be read."""
        return any(self.verify(grant.public_key, signature or b"", line) for grant in self.grants.values())

    def count(self, header: ControlHeader, head_sha256: bytes) -> str:
        """An authorised record stands in the log, and its idempotency key is used up: for the `key_scope` that it
        names, but a bound signer's for that signer alone, whatever scope it claims."""
        self.note(head_sha256)
        if header.idempotency_key is None:
            return ""
        grant = self.grants.get(KeyId(header.signer))
        itself = grant is not None and grant.binding is not None
        used = (header.signer if itself else header.key_scope or header.signer, header.idempotency_key)
        if used in self._keys_used:
            return "repeated_idempotency_key"
        self._keys_used.add(used)
        return ""

    def note(self, head_sha256: bytes) -> None:
        """A signature held over this header line; of a record of which only digests are shown, by the word of whoever
        sealed it."""
        self._signed.add(head_sha256)
