"""A `kv.control` of light signatures, for simulations where nobody attacks the signature itself."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

from auditor.registry import ControlFold
from events.chain import sha256
from events.codec import encode_control
from events.ids import Role
from events.keyring import KeyRing
from events.model.control import ControlBody, DomainCreated, Genesis, Granted
from events.signing import key_id

RING = KeyRing({"acme": sha256(b"acme")})
KEYS = {"acme": RING["acme"].alias_key}


@dataclass(frozen=True)
class LightSigner:
    """Stands for a key pair where nobody attacks the signature itself."""

    public_key: bytes

    @property
    def id(self) -> str:
        return key_id(self.public_key)

    def sign(self, message: bytes) -> bytes:
        return sha256(self.public_key + message)


def light_verify(public_key: bytes, signature: bytes, message: bytes) -> bool:
    return signature == sha256(public_key + message)


def _begun() -> ControlFold:
    registry = ControlFold(light_verify)
    operator = LightSigner(sha256(b"operator"))
    write(registry, Genesis(log="sim", operator_key=operator.public_key, partitions=1), Role.OPERATOR)
    for role in Role:
        if role is not Role.OPERATOR:
            key = sha256(role.value.encode())
            write(registry, Granted(public_key=key, roles=(role,), label=role.value), Role.OPERATOR)
    write(registry, DomainCreated(domain="acme", tenant="acme"), Role.CONTROL)
    return registry


def write(
    registry: ControlFold,
    body: ControlBody,
    role: Role,
    *,
    shown: bool = True,
    signer: LightSigner | None = None,
    ignored: str = "",
) -> int:
    """Appends a control record; not `shown`: the log has lost it, the registry sees a hole. `ignored` is why the
    registry must not obey it."""
    signer = signer or LightSigner(sha256(role.value.encode()))
    offset = registry.next_offset
    if not shown:
        registry.holes.append((offset, offset))
        registry.next_offset += 1
        return offset
    value, line = encode_control(body, log="sim", signer=signer.id, role=role, written_ms=offset)
    why = registry.feed(offset, value, signer.sign(line))
    assert why == ignored, why
    return offset


BEGUN = _begun()


def begun() -> ControlFold:
    """A registry of one's own that has folded the log's first records."""
    return deepcopy(BEGUN)
