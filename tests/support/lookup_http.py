"""A lookup service over a hand-made fleet, asked over ASGI; its feeds are never started."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from events.kafka.connection import KafkaConnection
from indexer.service.app import LookupService
from indexer.service.config import ServiceConfig
from indexer.service.connection import ConnectionLimits
from indexer.service.credential import CallerRole, Credential, Credentials
from tests.support.reader_world import RING, World, chain_of

TOKENS = list(range(320))
ASKED: dict[str, Any] = {
    "profile": "tiny",
    "token_ids": TOKENS,
    "max_staleness_ms": 1_000,
    "domain": "default",
}
BOUND = {"max_staleness_ms": 1_000}


def credential(
    name: str, role: CallerRole, *, tenant: str | None = None, domains: Sequence[str] = ()
) -> Credential:
    return Credential(
        name=name,
        sha256=hashlib.sha256(name.encode()).digest(),
        role=role,
        tenant=tenant,
        domains=tuple(domains),
    )


CREDENTIALS = Credentials(
    [
        credential("router", CallerRole.ROUTER, domains=["default"]),
        credential("everywhere", CallerRole.ROUTER, domains=["*"]),
        credential("acme", CallerRole.TENANT, tenant="acme"),
        credential("operator", CallerRole.OPERATOR),
        credential("auditor", CallerRole.AUDITOR),
    ]
)


def service(
    *,
    credentials: Credentials | None = None,
    max_body_bytes: int = 100_000,
    world: World | None = None,
    connections: ConnectionLimits | None = None,
    max_watchers: int = 64,
    proofs: Path | None = None,
) -> LookupService:
    """A service over the world's fleet as it is now; by default one worker that holds ten blocks."""
    if world is None:
        world = World(domains=[("acme", "acme")])
        hook = world.join()
        hook.store(chain_of(TOKENS)[:10])
        world.round(hook)
    config = ServiceConfig(
        connection=KafkaConnection("127.0.0.1:9"),
        keyring=RING,
        reader="reader",
        credentials=credentials or Credentials(),
        max_body_bytes=max_body_bytes,
        max_order_bytes=10_000,
        connections=connections or ConnectionLimits(),
        max_watchers=max_watchers,
        proofs=proofs,
    )
    clock = world
    made = LookupService(config, monotonic_ns=lambda: clock.now_ns, wall_ms=lambda: 1_700_000_000_000)
    view, registry = made.view, made.view.registry
    for offset, (value, signature) in enumerate(world.log.records):
        view.control_folded(*registry.fold(offset, value, signature))
    view.streams.update(world.view.streams)
    view.index, view.positions, view.copies = world.view.index, world.view.positions, world.view.copies
    view.caught_up, view.profiles_seen = True, world.view.profiles_seen
    view.former, view.quotas = world.view.former, world.view.quotas
    view.control_current_ns = lambda: clock.now_ns
    made.feed.state.control_read = True
    return made


def browser(made: LookupService) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=made), base_url="http://replica")


def kind(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == response.status_code
    assert document["title"]
    return str(document["type"]).removeprefix("/problems/")
