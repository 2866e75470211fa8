"""Simulated workers of an earlier process: only one process at a time runs them, so their lives have ended."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from events.ids import Role
from events.model.control import ExitAttested
from kvledger.control import connection, control_writer, read_registry
from kvledger.failure import CommandError, ExitCode
from kvledger.settings import Settings

LOCK = "simulate.lock"
ENDPOINT_SCHEME = "sim://"


@contextmanager
def only_simulation(home: Path) -> Iterator[None]:
    """Holds the home's lock, which the system releases however this process ends.

    Raises CommandError while another process holds it.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home / LOCK).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandError(
                f"another simulation runs on {home}",
                advice="stop it with Ctrl-C first",
                exit_code=ExitCode.UNAVAILABLE,
            ) from error
        yield


def exit_of(worker: str, life: str, evidence: str) -> ExitAttested:
    """The attestation that a simulated engine life has ended."""
    return ExitAttested(worker=worker, engine_life=life, attester="kvledger-simulate", evidence=evidence)


async def attest_ended(settings: Settings) -> int:
    """Attests, as supervisor, that all simulated engine lives in the log have ended; how many were new.

    Call it while holding the lock and before any worker of one's own is registered. Without it a run that was
    killed would leave engines behind of which nobody can say that their memory is gone.
    """
    registry = await read_registry(connection(settings))
    ended = {
        (one.body.worker, one.body.engine_life)
        for one in registry.registrations.values()
        if (one.body.endpoint or "").startswith(ENDPOINT_SCHEME)
    }
    missing = sorted(ended - registry.exits.keys())
    if missing:
        async with control_writer(settings, registry, Role.SUPERVISOR) as writer:
            for worker, life in missing:
                await writer.append(exit_of(worker, life, "the lock that its process held is free"))
    return len(missing)
