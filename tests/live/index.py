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

from events.identity import profile_digest
from events.model.profile import ContentProfile
from tests.live.engine import BLOCK, MODEL, LiveEngine
from tests.support.command import KVLEDGER, environment, kvledger

WAIT_S = 40.0
UNDECLARED = "profile-unknown"
UNDECLARED_S = 5.0
"""A stream whose declaration isn't read yet would be out of its bound of two seconds by then: another answer."""


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
        """Starts `kvledger bridge` beside an engine, as a user would who knows its sockets."""
        command = ["bridge", "--worker", engine.name, "--model", MODEL]
        command += ["--endpoint", engine.endpoint, "--replay", engine.replay, "--engine-url", engine.url]
        self._begin(engine, folder, command)

    def attach(self, engine: LiveEngine, folder: Path) -> None:
        """Starts `kvledger attach`, which learns of the engine what it is, and of each rank where it publishes."""
        self._begin(engine, folder, ["attach", engine.url, "--worker", engine.name])

    def _begin(self, engine: LiveEngine, folder: Path, command: list[str]) -> None:
        if engine.agent is not None:
            command += ["--agent", str(engine.agent)]
        with (folder / f"bridge-{engine.name}.log").open("ab") as log:
            self._bridges[engine.name] = subprocess.Popen(
                [*KVLEDGER, *command], env=environment(self.home), stdout=log, stderr=log
            )

    def profile_of(self, engine: LiveEngine) -> str:
        """The id of the profile that `kvledger attach` learns of an engine, of blocks without an adapter."""
        learned = json.loads(self.run("attach", engine.url, "--check", "--json").splitlines()[-1])
        return profile_digest(ContentProfile.model_validate(learned["content"]))

    def unbridge_if_there(self, name: str) -> None:
        if name in self._bridges:
            self.unbridge(name)

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
        self,
        worker: str,
        tokens: Sequence[int],
        domain: str,
        since_s: float,
        *,
        adapter: str | None = None,
        rank: int = 0,
        profile: str = MODEL,
        basis: str = "published",
    ) -> Found:
        """What is known of a worker's rank as of a moment after `since_s` (monotonic)."""
        began_s = time.monotonic()
        found = Found(0, 0, None, complete=False, why="never asked")
        undeclared_s = 0.0
        while time.monotonic() < began_s + WAIT_S:
            asked = self._ask(worker, tokens, domain, basis, adapter=adapter, rank=rank, profile=profile)
            found, as_of_s = asked
            if as_of_s is not None and as_of_s > since_s:
                return found
            undeclared = found.why == UNDECLARED and "next_seq" in self.stream(worker, rank)
            undeclared_s = (undeclared_s or time.monotonic()) if undeclared else 0.0
            if undeclared and time.monotonic() > undeclared_s + UNDECLARED_S:
                return found
            time.sleep(0.05)
        return found

    def standing(
        self, worker: str, tokens: Sequence[int], domain: str, *, adapter: str | None = None, rank: int = 0
    ) -> Found:
        """What is said of a worker's rank now, however old it is."""
        return self._ask(worker, tokens, domain, "published", adapter=adapter, rank=rank)[0]

    def _ask(
        self,
        worker: str,
        tokens: Sequence[int],
        domain: str,
        basis: str,
        *,
        adapter: str | None = None,
        rank: int = 0,
        profile: str = MODEL,
    ) -> tuple[Found, float | None]:
        """An answer, and the moment that it speaks of."""
        asked_s = time.monotonic()
        body = self._question(worker, tokens, domain, basis, adapter=adapter, profile=profile)
        answer = self._http.post(f"{self.url}/v1/lookup", json=body)
        document: dict[str, Any] = answer.json()
        complete = bool(document.get("complete"))
        for match in document.get("matches", []):
            if (match["worker"], match["dp_rank"]) == (worker, rank):
                count = int(match["matched_tokens"])
                found = Found(count // BLOCK, count, str(match["basis"]), complete)
                return found, asked_s - float(match["staleness_ms"]) / 1_000
        reasons = [one["reason"] for one in document.get("excluded", []) if one["dp_rank"] in (rank, None)]
        problem = str(document.get("type", "nothing said")).rpartition("/")[2]
        why = str(reasons[0]) if reasons else problem
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

    def _question(
        self,
        worker: str,
        tokens: Sequence[int],
        domain: str,
        basis: str,
        *,
        adapter: str | None = None,
        profile: str = MODEL,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "profile": profile,
            "token_ids": list(tokens),
            "domain": domain,
            "candidates": [worker],
        }
        if adapter is not None:
            body["adapter"] = adapter
        return body | {"max_staleness_ms": 2_000, "basis": basis, "min_coverage": 0}

    def stream(self, worker: str, rank: int = 0) -> dict[str, Any]:
        """The row of the newest stream of a worker's rank in `/v1/workers`; empty if there is none."""
        rows: list[dict[str, Any]] = self._http.get(f"{self.url}/v1/workers").json()["workers"]
        own = [row for row in rows if (row["worker"], row["dp_rank"]) == (worker, rank)]
        return max(own, key=lambda row: int(row["epoch_no"])) if own else {}

    def copies(self, worker: str, rank: int = 0) -> int:
        """Copies that a rank's newest stream holds in the index, with those that are nobody's."""
        stream = self.stream(worker, rank)
        held = [int(holder["unassigned"]) for holder in stream.get("holders", [])]
        return int(stream.get("copies", 0)) + sum(held)

    def order_standing(self, number: int) -> dict[str, Any]:
        """How the holders stand to a deletion order."""
        answer: dict[str, Any] = self._http.get(f"{self.url}/v1/deletions/{number}").json()
        return answer
