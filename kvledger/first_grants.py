"""The keys and grants that `kvledger up` makes without a question: one key for each role of a local stack, unbound."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

from events.ids import Role
from events.model.control import DomainCreated, Genesis, Granted, SchemaEnabled
from kvledger.settings import Settings, load_settings

GRANTED_ROLES = (Role.ENROLMENT, Role.CONTROL, Role.SUPERVISOR, Role.AUDITOR)


def ensure_keys(home: Path) -> None:
    """Makes each role's key and the default domain's secret unless they exist; mode 0600."""
    from kvledger.keyfile import DEFAULT_DOMAIN, ensure_domain_secret, ensure_key

    for role in Role:
        ensure_key(home, role)
    ensure_domain_secret(home, DEFAULT_DOMAIN)


def ensure_grants(home: Path, bootstrap: str) -> None:
    """Writes genesis, grants, the enabled schema and the default domain unless the log has them."""
    settings = load_settings(home=home, kafka=bootstrap)
    asyncio.run(write_grants(settings))


async def write_grants(settings: Settings) -> None:
    """`ensure_grants` of these settings. Raises CommandError."""
    from kvledger.control import connection, control_tail, control_writer, or_unavailable
    from kvledger.keyfile import DEFAULT_DOMAIN, DEFAULT_TENANT, load_signers

    async def write() -> None:
        signers = load_signers(settings.home, *Role)
        async with (
            control_tail(connection(settings)) as tail,
            control_writer(settings, tail.registry, *Role) as writer,
        ):
            registry = tail.registry
            if not registry.log:
                await writer.append(
                    Genesis(
                        log=f"log-{secrets.token_hex(8)}",
                        operator_key=signers[Role.OPERATOR].public_key,
                        partitions=settings.partitions,
                    )
                )
                await tail.catch_up()  # under whose grants the next ones count
            for role in GRANTED_ROLES:
                if signers[role].id not in registry.grants:
                    await writer.append(
                        Granted(
                            public_key=signers[role].public_key, roles=(role,), label=f"local {role.value}"
                        )
                    )
            await tail.catch_up()
            if "event_batch" not in registry.schema:
                await writer.append(SchemaEnabled(record="event_batch", version=1))
            if DEFAULT_DOMAIN not in registry.domains:
                await writer.append(DomainCreated(domain=DEFAULT_DOMAIN, tenant=DEFAULT_TENANT))

    await or_unavailable(write)
