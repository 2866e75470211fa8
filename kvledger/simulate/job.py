"""A request given to a simulated worker, and when it got what it waits for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kvledger.simulate.engine import Running
from kvledger.simulate.prompt import Prompt


@dataclass(slots=True, eq=False)
class Job:
    """One request given to a worker. `done` resolves to its hit tokens when it has left the engine, or to
    None if it can never fit. `published`, if wanted, to when its prompt's last block was told (ns), or to
    None if it was there before."""

    prompt: Prompt
    done: asyncio.Future[int | None]
    published: asyncio.Future[int | None] | None = None
    running: Running | None = None
    admitted_after: int = -1


def resolve(future: asyncio.Future[int | None] | None, value: int | None) -> None:
    """Whoever waited may have given up."""
    if future is not None and not future.done():
        future.set_result(value)
