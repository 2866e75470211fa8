"""What is done with a real engine, one thing after another, and how the index stands after each."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.live.engine import BLOCK, LiveEngine
from tests.live.index import Index
from tests.live.tiny_model import FIRST_WORD, VOCABULARY
from tests.live.truth import HashTap, Pool, resident
from tests.support.command import kvledger

HIT_PROMPTS = 10
"""Of an engine whose pool nobody can see so many prompts are sent again, the newest first."""
SETTLED_S = 6.0


@dataclass
class Row:
    """`compared` blocks, of which `differences` were otherwise than the engine's own word."""

    engine: str
    scenario: str
    compared: int = 0
    differences: int = 0
    basis: set[str] = field(default_factory=set)
    note: str = ""


Prompt = tuple[tuple[int, ...], str]
"""Tokens and domain."""


class Run:
    """One engine, its bridge and all prompts sent so far. `pool` None: its truth is its hit counters."""

    def __init__(self, engine: LiveEngine, index: Index, folder: Path, say: Callable[[Row], None]) -> None:
        self.engine = engine
        self.index = index
        self.rows: list[Row] = []
        self._folder = folder
        self._say = say
        self._pool = Pool(engine.agent) if engine.agent is not None else None
        self._tap = HashTap(engine)
        self._prompts: dict[Prompt, None] = {}
        self._random = random.Random(engine.name)
        self._salts: dict[str, str | None] = {"default": None}
        for domain in ("acme", "beta"):
            index.run("domain", "add", domain, "--tenant", domain)
            self._salts[domain] = json.loads(index.run("domain", "salt", domain, "--json"))["cache_salt"]

    def close(self) -> None:
        self._tap.stop()

    def all(self) -> None:
        """Every scenario, in an order in which each finds something to do."""
        for scenario in (
            self.shared_prefixes,
            self.repeated,
            self.decoded,
            self.two_tenants,
            self.evicted_and_preempted,
            self.aborted,
            self.bridge_killed,
            self.deleted,
            self.reset_while_idle,
            self.reset_while_busy,
            self.deleted_while_running,
            self.ended_by_sigterm,
            self.ended_by_sigkill,
        ):
            scenario()

    # --- scenarios ----------------------------------------------------------------------------------

    def shared_prefixes(self) -> None:
        first = self._words(96)
        for length in (33, 64, 96, 200):
            self._send([*first, *self._words(length)])
        self._send(self._words(16))
        self._check("shared prefixes")

    def repeated(self) -> None:
        aligned = self._words(128)
        for _ in range(3):
            self._send(aligned)
        self._check("a block-aligned prompt again and again")

    def decoded(self) -> None:
        self._send(self._words(70), outputs=150)
        self._check("decode")

    def two_tenants(self) -> None:
        prompt = self._words(160)
        for domain in ("acme", "beta", "acme"):
            self._send(prompt, domain)
        self._check("one prompt of two tenants")

    def evicted_and_preempted(self) -> None:
        before = self.engine.preemptions()
        prompts = [self._words(400) for _ in range(12)]
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda prompt: self._send(prompt, outputs=120), prompts))
        self.engine.drained()
        self._check("eviction and preemption", note=f"{self.engine.preemptions() - before} preemptions")

    def aborted(self) -> None:
        prompt = self._words(100)
        self._prompts[tuple(prompt), "default"] = None
        self.engine.abort(prompt, 0.5)
        self._check("a request whose caller went away")

    def bridge_killed(self) -> None:
        self.index.unbridge(self.engine.name, signal.SIGKILL)
        self._send(self._words(150))
        self.index.bridge(self.engine, self._folder)
        self._check("the bridge killed and started again")

    def deleted(self) -> None:
        """Before: a hit. After the ack: a miss, and another tenant's is still a hit, where single blocks go."""
        prompt = self._words(256)
        for domain in ("acme", "beta"):
            self._send(prompt, domain)
        row = Row(self.engine.name, "a tenant deleted")
        hit = (len(prompt) - 1) // BLOCK * BLOCK
        before = self.engine.delivered(prompt, salt=self._salts["acme"])
        verdict = self._delete("acme")
        after = self.engine.delivered(prompt, salt=self._salts["acme"])
        other = self.engine.delivered(prompt, salt=self._salts["beta"])
        other_hit = hit if self._pool is not None else 0
        for seen, right in ((before, hit), (after, 0), (other, other_hit)):
            row.compared += hit // BLOCK
            row.differences += abs(seen - right) // BLOCK
        row.differences += not verdict.startswith("PROVEN")
        row.note = f"hits before {before}, after {after}, other tenant {other}; {verdict}"
        self._finish(row)
        self._check("after it")

    def deleted_while_running(self) -> None:
        """The ack waits for a request that holds what is deleted; nothing that it stores later is ever a hit."""
        prompt, other = self._words(128), self._words(96)
        self._send(prompt, "beta")
        self._send(other, "acme")
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self._send, prompt, "beta", outputs=600)
            self._busy()
            verdict = self._delete("beta")
            ended = running.done()
            running.result()
        self.engine.drained()
        row = Row(self.engine.name, "a tenant deleted while it runs")
        seen = self.engine.delivered(prompt, salt=self._salts["beta"])
        row.compared += len(prompt) // BLOCK
        row.differences += seen // BLOCK + (not verdict.startswith("PROVEN")) + (not ended)
        if self._pool is not None:
            kept = self.engine.delivered(other, salt=self._salts["acme"])
            row.compared += (len(other) - 1) // BLOCK
            row.differences += abs((len(other) - 1) // BLOCK - kept // BLOCK)
        row.note = f"acked after its end: {ended}; hit afterwards {seen}; {verdict}"
        self._finish(row)
        self._check("after it")

    def reset_while_idle(self) -> None:
        self.engine.drained()
        done = self.engine.reset()
        if self._pool is None:
            # Without an agent a reset is told with the engine's next step, and nobody can know it before.
            self._send(self._words(16))
        self._check("reset while idle", note=f"reset {'done' if done else 'refused'}")

    def reset_while_busy(self) -> None:
        self._send(self._words(200))
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self._send, self._words(64), outputs=400)
            self._busy()
            done = self.engine.reset()
            running.result()
        self.engine.drained()
        self._check("reset while busy", note=f"reset {'done' if done else 'refused'}")

    def ended_by_sigterm(self) -> None:
        self._restart(signal.SIGTERM)

    def ended_by_sigkill(self) -> None:
        self._restart(signal.SIGKILL)

    # --- inside -------------------------------------------------------------------------------------

    def _restart(self, number: signal.Signals) -> None:
        self.engine.restart(number)
        # Nothing of the former life may be credited before the new one has said a word.
        self._check(f"{number.name} and start", absent=True)
        for tokens, domain in list(self._prompts)[-3:]:
            self._send(tokens, domain)
        self._check(f"served again after {number.name}")

    def _words(self, count: int) -> list[int]:
        return [self._random.randrange(FIRST_WORD, VOCABULARY) for _ in range(count)]

    def _send(self, tokens: Sequence[int], domain: str = "default", *, outputs: int = 1) -> None:
        self._prompts[tuple(tokens), domain] = None
        whole = self.engine.complete(tokens, salt=self._salts[domain], outputs=outputs)
        self._prompts[tuple(whole), domain] = None

    def _busy(self) -> None:
        """Waits until a request has run for a few steps."""
        started = threading.Event()
        for _ in range(200):
            if self.engine.running():
                started.wait(0.3)
                return
            time.sleep(0.02)
        raise RuntimeError("the request doesn't run")

    def _delete(self, tenant: str) -> str:
        number = json.loads(self.index.run("delete", "--tenant", tenant, "--json"))["number"]
        audit = ("audit", "run", "--request", str(number), "--wait", "60", "--json")
        done = kvledger(*audit, home=self.index.home)
        try:
            verdict = json.loads(done.stdout)
            why = ", ".join(reason["reason"] for reason in verdict["reasons"][:3])
            return str(verdict["kind"]) + (f" ({why})" if why else "")
        except (ValueError, KeyError):
            return done.stderr.strip()[-200:]

    def _check(self, scenario: str, *, absent: bool = False, note: str = "") -> None:
        since_s = time.monotonic()
        row = Row(self.engine.name, scenario, note=note)
        if self._pool is None:
            self._check_by_hits(row, since_s, absent=absent)
        else:
            self._check_by_pool(row, self._pool, since_s)
        self._finish(row)

    def _check_by_pool(self, row: Row, pool: Pool, since_s: float) -> None:
        """What is credited must be there at once; what is in doubt isn't credited, and may take a look at the
        pool, for which the bridge has some seconds."""
        deadline_s = since_s + SETTLED_S
        while True:
            missing = 0
            row.compared = 0
            held = pool.look()
            for tokens, domain in self._prompts:
                chain = self._tap.chain(tokens, self._salts[domain])
                found = self.index.lookup(self.engine.name, tokens, domain, since_s)
                row.basis.add(found.basis or found.why)
                row.compared += len(tokens) // BLOCK
                truth = resident(chain, held)
                row.differences += max(0, found.blocks - truth)
                missing += max(0, truth - found.blocks)
            copies = len(held.copies.get(0, {}))
            row.compared += copies
            missing += abs(copies - self.index.copies(self.engine.name))
            if not missing or time.monotonic() > deadline_s:
                row.differences += missing
                return
            since_s = time.monotonic()

    def _check_by_hits(self, row: Row, since_s: float, *, absent: bool) -> None:
        if absent:
            # An engine that has said nothing since its start can't be confirmed: it must not be credited.
            for tokens, domain in list(self._prompts)[-HIT_PROMPTS:]:
                found = self.index.standing(self.engine.name, tokens, domain)
                row.basis.add(found.basis or found.why)
                row.compared += len(tokens) // BLOCK
                row.differences += found.blocks
            return
        for tokens, domain in list(self._prompts)[-HIT_PROMPTS:]:
            found = self.index.lookup(self.engine.name, tokens, domain, since_s)
            row.basis.add(found.basis or found.why)
            usable = min(found.tokens, (len(tokens) - 1) // BLOCK * BLOCK)
            seen = self.engine.delivered(tokens, salt=self._salts[domain])
            row.compared += len(tokens) // BLOCK
            row.differences += abs(seen - usable) // BLOCK
            since_s = time.monotonic()

    def _finish(self, row: Row) -> None:
        self.rows.append(row)
        self._say(row)
