"""Conditions that say that a stack is whole again, seen from outside: by requests, rows and offsets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import asyncpg

from events.errors import KvledgerError
from events.kafka.connection import LogTail
from events.topic import EVENTS
from kvledger.control import connection
from kvledger.settings import Settings
from kvledger.simulate.fault import Arena
from kvledger.simulate.fleet_plan import MODEL
from kvledger.simulate.nemesis.target import Target
from kvledger.simulate.rest import RestError
from kvledger.stack.process import ProcessId
from kvledger.stack.state import Home, ServiceState

BOUND_MS = 1000
CONNECT_S = 5.0


async def services_ready(arena: Arena) -> str:
    """Every service of the stack is READY and the lookup service says so itself."""
    state = Home(arena.settings.home).read_state()
    if state is None:
        return "no state of the stack can be read"
    for one in state.services:
        if one.state not in (ServiceState.READY, ServiceState.EXTERNAL):
            return f"{one.name} is {one.state.value}"
    return await lookup_ready(arena)


async def lookup_ready(arena: Arena) -> str:
    """GET /readyz is answered with 200."""
    try:
        reply = await arena.rest.get("/readyz")
    except RestError as error:
        return f"/readyz: {error}"
    return "" if reply.status == 200 else f"/readyz answers {reply.status}"


async def service_back(arena: Arena, service: str, before: ProcessId) -> str:
    """Another process of the service is READY."""
    return "" if Target(arena.settings.home, service).is_back(before) else f"{service} is not back"


async def answers_complete(arena: Arena) -> str:
    """A lookup with a bound answers for every live worker of the fleet."""
    tenant = next(iter(arena.fleet.salt_by_tenant))
    question = {
        "profile": MODEL,
        "domain": tenant,
        "token_ids": list(range(arena.fleet.plan.block_tokens)),
        "max_staleness_ms": BOUND_MS,
    }
    try:
        reply = await arena.rest.request(
            "POST", "/v1/lookup", body=json.dumps(question).encode(), content_type="application/json"
        )
        document = reply.json()
    except RestError as error:
        return f"no answer: {error}"
    if reply.status != 200:
        return f"a lookup answers {reply.status} ({document.get('type', '')})"
    living = {worker.name for worker in arena.fleet.workers if not worker.dead}
    for entry in document["excluded"]:
        if entry["worker"] in living:
            return f"{entry['worker']} is excluded: {entry['reason']}"
    covered = int(document["coverage"]["included"])
    return "" if covered >= len(living) else f"{covered} of {len(living)} workers are covered"


async def epoch_of(arena: Arena, worker: str) -> str:
    """The epoch of the worker's newest stream once the lookup service has it live; empty until then."""
    try:
        reply = await arena.rest.get("/v1/workers")
        rows = reply.json()["workers"] if reply.status == 200 else []
    except RestError:
        return ""
    for row in rows:
        if row["worker"] == worker and row["status"] == "live":
            return str(row["epoch"])
    return ""


async def lookups_whole(arena: Arena) -> str:
    """All services are ready and lookups complete."""
    return await services_ready(arena) or await answers_complete(arena)


async def log_ends(settings: Settings) -> dict[int, int]:
    """Next offset by partition of `kv.events`. Raises LogUnavailableError."""
    at = connection(settings)
    topic = at.topic(EVENTS)
    tail = LogTail(at, {(topic, number): 0 for number in range(settings.partitions)})
    try:
        await tail.start()
        return {number: end for (_, number), end in (await tail.end_offsets()).items()}
    finally:
        await tail.stop()


async def committed(settings: Settings) -> dict[int, int]:
    """Up to where each partition is in the index; empty while PostgreSQL or its tables are away."""
    topic = connection(settings).topic(EVENTS)
    with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        opened = await database(settings)
        try:
            rows = await opened.fetch(
                "SELECT partition, next_offset FROM partition_progress WHERE topic = $1 AND log_id <> ''",
                topic,
                timeout=CONNECT_S,
            )
        finally:
            await opened.close(timeout=CONNECT_S)
        return {row["partition"]: row["next_offset"] for row in rows}
    return {}


async def database(settings: Settings) -> Any:
    """A connection to the index; the caller closes it. Raises OSError, TimeoutError, asyncpg's errors."""
    assert settings.database_url is not None
    return await asyncpg.connect(settings.database_url.get_secret_value(), timeout=CONNECT_S)


class IndexCurrent:
    """The index holds all that was in the log when this was first asked, and lookups are whole."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._ends: Mapping[int, int] | None = None

    async def __call__(self) -> str:
        settings = self._arena.settings
        if self._ends is None:
            try:
                async with asyncio.timeout(10):
                    self._ends = await log_ends(settings)
            except (KvledgerError, TimeoutError) as error:
                return f"the log doesn't answer: {error}"
        reached = await committed(settings)
        for partition, end in self._ends.items():
            if reached.get(partition, -1) < end:
                return f"kv.events[{partition}] is indexed up to {reached.get(partition)} of {end}"
        return await lookups_whole(self._arena)
