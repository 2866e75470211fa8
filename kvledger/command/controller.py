"""`kvledger controller`: quotas, calls for snapshots, fences and retention."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
import time
from typing import Annotated

import typer

from kvledger.command.migrate import configured_database
from kvledger.settings import Settings, load_settings


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("controller")(controller)


def controller(
    lost_after_s: Annotated[
        float, typer.Option(min=1, help="Seconds of silence after which a stream is fenced.")
    ] = 60.0,
) -> None:
    """Evaluate quotas, ask for snapshots, fence lost streams and request the deletions that retention policies
    want; one process is active, others stand by.

    Example: kvledger controller --lost-after-s 30
    """
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    asyncio.run(run(load_settings(), configured_database(), lost_after_s=lost_after_s))


async def run(settings: Settings, dsn: str, *, lost_after_s: float = 60.0) -> None:
    """The whole controller process, until SIGTERM or SIGINT."""
    from events.fold.registry import Registry
    from events.ids import Role
    from events.kafka.control import ControlWriter
    from events.signing import verify
    from indexer.controller import Controller, ControllerOptions
    from indexer.silence import SilenceLimits
    from kvledger.control import connection, wall_ms
    from kvledger.keyfile import load_signers

    at = connection(settings)
    registry = Registry(verify)
    active = Controller(
        dsn,
        at,
        registry,
        ControlWriter(at, registry, signers=load_signers(settings.home, Role.CONTROL), wall_ms=wall_ms),
        monotonic_s=time.monotonic,
        monotonic_ns=time.monotonic_ns,
        wall_ms=wall_ms,
        nonce=lambda: secrets.token_bytes(16),
        options=ControllerOptions(
            name=f"controller-{os.getpid()}", silence=SilenceLimits(lost_after_s=lost_after_s)
        ),
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    work = asyncio.create_task(active.run())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
    work.cancel()
    await asyncio.wait({work}, timeout=10)
