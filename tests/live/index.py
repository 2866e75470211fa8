"""A stack and bridges of the run's own, and what the index answers."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from tests.live.engine import BLOCK, MODEL, LiveEngine
from tests.support.command import KVLEDGER, environment, kvledger

WAIT_S = 40.0


@dataclass(frozen=True)
class Found:
    """What the index says of one worker; `basis` None: it says nothing, for `why`."""

    blocks: int
    tokens: int
    basis: str | None
    complete: bool
    why: str = ""


class Index:
    """`kvledger up` on free ports, under a home of its own, which is wiped at the end."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.url = ""
        self._http = httpx.Client(timeout=30, trust_env=False)
        self._bridges: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.run("up", "--json")
        self.url = json.loads(self.run("status", "--json"))["lookup_url"]
        return self

    def __exit__(self, *_: object) -> None:
        self.unbridge_all()
        self._http.close()
        kvledger("down", "--wipe", home=self.home)

    def run(self, *arguments: str) -> str:
        done = kvledger(*arguments, home=self.home)
        if done.returncode != 0:
            raise RuntimeError(f"kvledger {' '.join(arguments)}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def bridge(self, engine: LiveEngine, folder: Path) -> None:
        """Starts `kvledger bridge` beside an engine, as a user would."""
        command = [*KVLEDGER, "bridge", "--worker", engine.name, "--model", MODEL]
        command += ["--endpoint", engine.endpoint, "--replay", engine.replay, "--engine-url", engine.url]
        if engine.agent is not None:
            command += ["--agent", str(engine.agent)]
        with (folder / f"bridge-{engine.name}.log").open("ab") as log:
            self._bridges[engine.name] = subprocess.Popen(
                command, env=environment(self.home), stdout=log, stderr=log
            )

    def bridge_of(self, engine: LiveEngine) -> subprocess.Popen[bytes] | None:
        """The process of the bridge beside an engine, also one that has ended."""
        return self._bridges.get(engine.name)

    def unbridge_all(self) -> None:
        for name in list(self._bridges):
            self.unbridge(name)

    def unbridge(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self._bridges.pop(name)
        process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)

    def lookup(
        self, worker: str, tokens: Sequence[int], domain: str, since_s: float, *, basis: str = "published"
    ) -> Found:
        """What is known of a worker as of a moment after `since_s` (monotonic)."""
        deadline_s = time.monotonic() + WAIT_S
        found = Found(0, 0, None, complete=False, why="never asked")
        while time.monotonic() < deadline_s:
            found, as_of_s = self._ask(worker, tokens, domain, basis)
            if as_of_s is not None and as_of_s > since_s:
                return found
            time.sleep(0.05)
        return found

    def _ask(self, worker: str, tokens: Sequence[int], domain: str, basis: str) -> tuple[Found, float | None]:
        """An answer, and the moment that it speaks of."""
        asked_s = time.monotonic()
        body = self._question(worker, tokens, domain, basis)
        answer = self._http.post(f"{self.url}/v1/lookup", json=body)
        document: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        excluded = document.get("excluded", [])
        why = str(excluded[0].get("reason")) if excluded else f"status {answer.status_code}"
        complete = bool(document.get("complete"))
        for match in document.get("matches", []):
            if match["worker"] == worker:
                count = int(match["matched_tokens"])
                found = Found(count // BLOCK, count, str(match["basis"]), complete)
                return found, asked_s - float(match["staleness_ms"]) / 1_000
        return Found(0, 0, None, complete, why), None

    def asked(self, worker: str, tokens: Sequence[int], domain: str) -> tuple[Found, float | None]:
        """What is said of a worker now, and the moment that it speaks of; None: of none."""
        return self._ask(worker, tokens, domain, "published")

    def in_doubt(self, worker: str, tokens: Sequence[int], domain: str) -> bool:
        """Whether the index, asked why its match is no longer, says that the next block may or may not be there."""
        body = self._question(worker, tokens, domain, "published")
        document = self._http.post(f"{self.url}/v1/explain", json=body).json()
        stops = [
            group["stop"]
            for row in document.get("workers", [])
            for profile in row["profiles"]
            for group in profile["groups"]
        ]
        return any(stop is not None and stop["reason"] == "not_committed" for stop in stops)

    def _question(self, worker: str, tokens: Sequence[int], domain: str, basis: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "profile": MODEL,
            "token_ids": list(tokens),
            "domain": domain,
            "candidates": [worker],
        }
        return body | {"max_staleness_ms": 2_000, "basis": basis, "min_coverage": 0}

    def standing(self, worker: str, tokens: Sequence[int], domain: str) -> Found:
        """What is said of a worker now, however old it is."""
        return self._ask(worker, tokens, domain, "published")[0]

    def copies(self, worker: str) -> int:
        """Copies that the newest stream of a worker holds in the index."""
        rows = self._http.get(f"{self.url}/v1/workers").json()
        rows = rows["workers"] if isinstance(rows, dict) else rows
        own = [row for row in rows if row["worker"] == worker]
        return int(max(own, key=lambda row: row["epoch_no"]).get("copies", 0)) if own else 0
