"""Bridges that are started again whenever they end, as a service manager does it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvledger.simulate.nemesis.target import frozen
from kvledger.stack.process import identify
from tests.live.engine import LiveEngine
from tests.live.index import Index

RESTART_S = 0.5


@dataclass(frozen=True, slots=True)
class Exit:
    """A bridge that ended; `killed`: by us."""

    at_s: float
    engine: str
    code: int
    killed: bool


class Bridges:
    """Starts one beside each engine, and again half a second after its end."""

    def __init__(self, index: Index, engines: Sequence[LiveEngine], folder: Path) -> None:
        self.exits: list[Exit] = []
        self._index = index
        self._engines = {engine.name: engine for engine in engines}
        self._folder = folder
        self._held: set[str] = set()
        self._killed: set[int] = set()
        self._stopped = threading.Event()
        for engine in engines:
            index.bridge(engine, folder)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch, then the bridges, in order."""
        self._stopped.set()
        self._thread.join()
        self._index.unbridge_all()

    def pid(self, name: str) -> int | None:
        """Of the bridge that runs now."""
        process = self._index.bridge_of(self._engines[name])
        return process.pid if process is not None and process.poll() is None else None

    def pids(self, name: str) -> list[int]:
        """The same, for who wants several."""
        pid = self.pid(name)
        return [] if pid is None else [pid]

    def kill(self, name: str) -> None:
        """SIGKILL; nothing if it doesn't run."""
        process = self._index.bridge_of(self._engines[name])
        if process is not None and process.poll() is None:
            self._killed.add(process.pid)
            process.kill()

    @contextmanager
    def down(self, name: str) -> Iterator[None]:
        """Killed, and not started again within the block."""
        self._held.add(name)
        try:
            self.kill(name)
            yield
        finally:
            self._held.discard(name)

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """SIGSTOP for the length of the block."""
        pid = self.pid(name)
        process = identify(pid) if pid is not None else None
        if process is None:
            yield
            return
        with frozen(process):
            yield

    def _run(self) -> None:
        while not self._stopped.wait(RESTART_S):
            for name, engine in self._engines.items():
                process = self._index.bridge_of(engine)
                if name in self._held or process is None or process.poll() is None:
                    continue
                self.exits.append(
                    Exit(time.monotonic(), name, process.returncode, process.pid in self._killed)
                )
                self._index.bridge(engine, self._folder)
