"""Connections to PostgreSQL as every process of ours opens them, and what its failures mean to us."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
from asyncpg.exceptions._base import DataError as ArgumentError

CONNECT_TIMEOUT_S = 5.0

UNAVAILABLE: tuple[type[BaseException], ...] = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.LockNotAvailableError,
    asyncpg.exceptions.DeadlockDetectedError,
    asyncpg.exceptions.SerializationError,
    asyncpg.exceptions.InsufficientResourcesError,
    asyncpg.exceptions.CannotConnectNowError,
    asyncpg.exceptions.IdleInTransactionSessionTimeoutError,
)
"""What says nothing about the statement: the server is away, restarting or busy."""

REFUSED: tuple[type[BaseException], ...] = (
    ArgumentError,
    asyncpg.DataError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.CardinalityViolationError,
    asyncpg.exceptions.IntegrityConstraintViolationError,
)
"""What says that a value given can't be held, now or ever. `ArgumentError` is found by the client already and
is an InterfaceError too: look for these first."""

SERVER_SETTINGS = {
    "lock_timeout": "4s",
    "statement_timeout": "120s",
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}


async def connect(dsn: str, *, name: str, schema: str | None = None) -> Any:
    """One asyncpg connection with our time-outs; `name` shows in pg_stat_activity, `schema` holds the tables
    it means. JSON comes decoded and goes as text."""
    settings = {**SERVER_SETTINGS, "application_name": name}
    if schema is not None:
        settings["search_path"] = schema
    connection = await asyncpg.connect(
        dsn,
        timeout=CONNECT_TIMEOUT_S,
        command_timeout=150,
        server_settings=settings,
    )
    await connection.set_type_codec("jsonb", encoder=str, decoder=json.loads, schema="pg_catalog")
    return connection
