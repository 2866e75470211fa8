"""Who may ask what: static bearer tokens, kept hashed, each with a role and what it may see.

The file is JSON, `{"credentials": [{"name", "sha256", "role", "tenant"?, "domains"?}]}`; `sha256` is the hex
digest of the token. Tenant and domains come from here and never from a request.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from events.errors import KvledgerError
from events.fold.registry_state import Domain
from events.model.field import Hex32, Name
from router_client.wire import Model

EVERY_DOMAIN = "*"
DEFAULT_DOMAIN = "default"


class CredentialError(KvledgerError):
    """The credentials file can't be used; the message names it, never a token or hash."""


class CallerRole(StrEnum):
    """`router` asks within its grant; `tenant` sees its own; `operator` does everything; `auditor` reads
    everything but lookups."""

    ROUTER = "router"
    TENANT = "tenant"
    OPERATOR = "operator"
    AUDITOR = "auditor"


class Credential(Model):
    """One token. A tenant's names its tenant; a router's its domains, `*` for all."""

    name: Name
    sha256: Hex32
    role: Annotated[CallerRole, Field(strict=False)]
    tenant: Name | None = None
    domains: Annotated[tuple[str, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _fits(self) -> Credential:
        if (self.role is CallerRole.TENANT) != (self.tenant is not None):
            raise ValueError("a tenant's credential, and only that, names a tenant")
        if self.role is CallerRole.ROUTER and not self.domains:
            raise ValueError("a router's credential names its domains")
        return self


class CredentialFile(Model):
    credentials: Annotated[tuple[Credential, ...], Field(strict=False)]


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller that is known."""

    name: str
    role: CallerRole
    tenant: str | None = None
    domains: frozenset[str] = frozenset()

    def may_read(self, domain: Domain) -> bool:
        """Whether lookups in the domain are the caller's to make."""
        match self.role:
            case CallerRole.OPERATOR:
                return True
            case CallerRole.ROUTER:
                return EVERY_DOMAIN in self.domains or domain.name in self.domains
            case CallerRole.TENANT:
                return self.tenant is not None and domain.readable_by(self.tenant)
            case CallerRole.AUDITOR:
                return False

    def owns(self, tenant: str) -> bool:
        """Whether the tenant's own affairs (deletions, usage) are the caller's."""
        return self.role is CallerRole.OPERATOR or (self.role is CallerRole.TENANT and self.tenant == tenant)

    def default_domain(self, domains: Mapping[str, Domain]) -> str | None:
        """The domain meant by a request that names none: the only one, else `default`, else none."""
        readable = [name for name, domain in domains.items() if self.may_read(domain)]
        if len(readable) == 1:
            return readable[0]
        return DEFAULT_DOMAIN if DEFAULT_DOMAIN in readable else None


LOCAL_OPERATOR = Principal("local-operator", CallerRole.OPERATOR)
"""Whoever reaches a loopback address for which no credentials are configured."""


class Credentials:
    """Known tokens. None at all configured: an unauthenticated caller is the local operator, loopback only.
    Configured and empty: nobody is let in."""

    def __init__(self, entries: Iterable[Credential] | None = None) -> None:
        self._configured = entries is not None
        self._by_hash = {
            entry.sha256: Principal(entry.name, entry.role, entry.tenant, frozenset(entry.domains))
            for entry in entries or ()
        }

    @property
    def configured(self) -> bool:
        return self._configured

    def identify(self, authorization: str | None) -> Principal | None:
        """The caller of an Authorization header; None: 401. A token that isn't known is never let through,
        also where none would be needed."""
        if authorization is None:
            return None if self.configured else LOCAL_OPERATOR
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        digest = hashlib.sha256(token.strip().encode()).digest()
        found: Principal | None = None
        for known, principal in self._by_hash.items():
            if hmac.compare_digest(known, digest):
                found = principal
        return found


def load_credentials(path: Path, *, required: bool = False) -> Credentials:
    """The file's tokens; one without any lets nobody in. No such file: nobody is configured, unless it is
    `required`. Raises CredentialError if the file can't be used."""
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        if required or path.is_symlink():
            raise CredentialError(f"there is no credentials file {path}") from error
        return Credentials()
    except OSError as error:
        raise CredentialError(f"{path} can't be read ({type(error).__name__})") from error
    if not text.strip():
        return Credentials([])
    try:
        document = CredentialFile.model_validate_json(text)
    except ValidationError as error:
        raise CredentialError(f"{path} is no credentials file ({type(error).__name__})") from error
    return Credentials(document.credentials)


def with_credential(
    document: str,
    *,
    name: str,
    token: str,
    role: CallerRole,
    tenant: str | None = None,
    domains: tuple[str, ...] = (),
) -> str:
    """The file's text with one more token, which replaces one of the same name. Raises CredentialError."""
    entry = {"name": name, "sha256": hashlib.sha256(token.encode()).hexdigest(), "role": role.value}
    content = json.loads(document) if document.strip() else {"credentials": []}
    kept = [known for known in content["credentials"] if known["name"] != name]
    added = {**entry, "tenant": tenant, "domains": list(domains)}
    text = json.dumps({"credentials": [*kept, added]}, indent=1) + "\n"
    try:
        CredentialFile.model_validate_json(text)
    except ValidationError as error:
        raise CredentialError(f"credential {name} does not fit its role") from error
    return text
