"""The project's error tree.

KvledgerError
├── DecodeError            a record could not be read (`events.codec`)
├── SignatureError         a signature or role did not hold (`events.signing`)
│   └── GrantError         a key may not say this, so it was not written (`events.kafka.control`)
├── IdentityError          a profile, salt or id is malformed (`events.identity`)
└── … each package adds its own leaves, always below KvledgerError
"""

from __future__ import annotations


class KvledgerError(Exception):
    """Root of every error this project raises on purpose; catch it at a process' edge."""


class DecodeError(KvledgerError):
    """A record's bytes are not what its topic promises.

    `reason` is a stable word for dead letters and metrics, `detail` is for people and never holds
    token ids or prompt text. The caller writes the whole record to `kv.dead` and goes on.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class SignatureError(KvledgerError):
    """A signature, key or role does not hold; the record is ignored and reported, never obeyed."""

    def __init__(self, reason: str, *, key_id: str = "") -> None:
        super().__init__(f"{reason} (key {key_id})" if key_id else reason)
        self.reason = reason
        self.key_id = key_id


class GrantError(SignatureError):
    """Every fold would ignore a record for its signer's sake, and an ignored one costs later proofs: nothing was
    written. `reason` is the folds' word for it. Another grant by the operator helps, or another key and a restart;
    what can't do without goes on asking, and writes once its fold knows of a grant."""

    def __init__(self, reason: str, *, key_id: str, role: str) -> None:
        super().__init__(reason, key_id=key_id)
        self.role = role

    def __str__(self) -> str:
        return f"the {self.role} key {self.key_id} may not say this ({self.reason}); nothing was written"


class IdentityError(KvledgerError):
    """A profile, salt, token list or id cannot be used; the message names the field."""
