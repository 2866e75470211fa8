"""A lookup service of a test's own on a real broker, and questions that are put until they are answered."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any

import httpx

from events.ids import Role
from events.kafka.connection import KafkaConnection
from events.topic import TopicNames
from indexer.service.config import LoadSnapshot, ServiceConfig
from indexer.service.server import RunningServer, start
from router_client.client import RouterClient
from router_client.failure import StaleError, TokenAheadError, UnavailableError
from router_client.wire import Answer
from tests.support.live_log import RING, SIGNERS, until
from tests.support.reader_world import chain_of

TOKENS = list(range(640))
CHAIN = chain_of(TOKENS)


@contextlib.asynccontextmanager
async def serving(
    kafka: str, prefix: str, *, load_snapshot: LoadSnapshot | None = None, ready: bool = True
) -> AsyncIterator[RunningServer]:
    config = ServiceConfig(
        connection=KafkaConnection(kafka, TopicNames(prefix)),
        keyring=RING,
        reader=f"reader-{secrets.token_hex(4)}",
        port=0,
        signers={Role.CONTROL: SIGNERS[Role.CONTROL]},
        load_snapshot=load_snapshot,
    )
    server = await start(config)
    try:
        if ready:
            async with httpx.AsyncClient(base_url=url(server), timeout=20) as http:
                await until(lambda: _ready(http))
        yield server
    finally:
        await server.stop()


async def _ready(http: httpx.AsyncClient) -> bool:
    return (await http.get("/readyz")).status_code == 200


def url(server: RunningServer) -> str:
    return f"http://127.0.0.1:{server.port}"


async def answered(client: RouterClient, holds: Any, **asked: Any) -> Answer:
    """The first answer for which the condition holds."""

    async def ask() -> Answer | None:
        try:
            found = await client.lookup(
                **{"profile": "tiny", "token_ids": TOKENS, "domain": "default", "max_staleness": 2.0, **asked}
            )
        except (StaleError, TokenAheadError, UnavailableError):
            return None
        return found if holds(found) else None

    found = await until(ask)
    assert isinstance(found, Answer)
    return found
