"""Domains of simulated tenants: one a tenant and of its name, made in the log and in the key ring."""

from __future__ import annotations

from collections.abc import Iterable

from events.identity import make_salt
from events.ids import Role
from events.keyring import KeyRing
from events.model.control import DomainCreated
from kvledger.control import connection, control_writer, read_registry
from kvledger.keyfile import ensure_domain_secret, load_ring
from kvledger.settings import Settings


async def ensure_tenants(settings: Settings, tenants: Iterable[str]) -> KeyRing:
    """Makes what is missing and returns the ring. Idempotent; existing domains keep owner and secret.

    Raises LogUnavailableError, CommandError if the log was never begun, KeyFileError without the control key.
    """
    names = sorted(set(tenants))
    for name in names:
        ensure_domain_secret(settings.home, name)
    registry = await read_registry(connection(settings))
    missing = [name for name in names if name not in registry.domains]
    if missing:
        async with control_writer(settings, registry, Role.CONTROL) as writer:
            for name in missing:
                await writer.append(DomainCreated(domain=name, tenant=name))
    return load_ring(settings.home)


def salts(ring: KeyRing, tenants: Iterable[str]) -> dict[str, str]:
    """The `cache_salt` of each tenant's requests, which are bearer secrets."""
    return {name: make_salt(ring[name].salt_key, name) for name in set(tenants)}
