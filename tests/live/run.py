"""One engine beside its bridge: what was sent to it, and how the index stands against the engine's own word."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.live.engine import BLOCK, MODEL, LiveEngine
from tests.live.index import Found, Index
from tests.live.prompt import Prompt, words
from tests.live.row import Row
from tests.live.truth import HashTap, Held, Pool
from tests.support.command import kvledger

HIT_PROMPTS = 10
"""Of an engine whose pool nobody can see so many prompts are sent again, the newest first."""
SETTLED_S = 6.0
ACKED_S = 60.0
DOMAINS = ("acme", "beta")


class Tenants:
    """The domains of a whole run and their salts."""

    def __init__(self, index: Index) -> None:
        self.salts: dict[str, str | None] = {"default": None}
        for domain in DOMAINS:
            index.run("domain", "add", domain, "--tenant", domain)
            self.salts[domain] = json.loads(index.run("domain", "salt", domain, "--json"))["cache_salt"]


class Run:
    """All prompts sent so far are compared. Without an agent in the engine its truth is its hit counters.
    `attached`: its bridge is `kvledger attach`, which learns the engine's identity, else `kvledger bridge`."""

    def __init__(
        self,
        engine: LiveEngine,
        index: Index,
        folder: Path,
        tenants: Tenants,
        say: Callable[[Row], None],
        *,
        attached: bool,
    ) -> None:
        self.engine = engine
        self.index = index
        self.folder = folder
        self.prompts: dict[Prompt, None] = {}
        self.salts = tenants.salts
        self._say = say
        self._attached = attached
        agent = engine.agent
        self.pools = [Pool(agent, rank) for rank in range(engine.ranks)] if agent is not None else []
        self._tap = HashTap(engine)
        self._random = random.Random(engine.name)

    def close(self) -> None:
        self._tap.stop()

    # --- what is done -------------------------------------------------------------------------------

    def bridge(self) -> None:
        """Starts its bridge."""
        (self.index.attach if self._attached else self.index.bridge)(self.engine, self.folder)

    def unbridge(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.index.unbridge(self.engine.name, number)

    def words(self, count: int) -> list[int]:
        """A new prompt's tokens."""
        return words(self._random, count)

    def send(
        self,
        tokens: Sequence[int],
        domain: str = "default",
        *,
        outputs: int = 1,
        adapter: str | None = None,
        rank: int | None = None,
    ) -> Prompt:
        prompt = Prompt(tuple(tokens), domain, adapter, rank)
        self.prompts[prompt] = None
        salt = self.salts[domain]
        whole = self.engine.complete(tokens, salt=salt, outputs=outputs, adapter=adapter, rank=rank)
        self.prompts[prompt._replace(tokens=tuple(whole))] = None
        return prompt

    def again(self, prompt: Prompt) -> int:
        """Sends a prompt again; how many of its tokens the engine had."""
        return self.engine.delivered(
            prompt.tokens, salt=self.salts[prompt.domain], adapter=prompt.adapter, rank=prompt.rank
        )

    def busy(self) -> None:
        """Waits until a request has run for a few steps."""
        started = threading.Event()
        for _ in range(500):
            if self.engine.running():
                started.wait(0.3)
                return
            time.sleep(0.02)
        raise RuntimeError("the request doesn't run")

    def told(self) -> None:
        """An engine that cleared its cache while it was idle tells of it with its next step: without an agent
        nobody can know it before, so there is one, on every rank."""
        if not self.pools:
            for rank in range(self.engine.ranks):
                self.send(self.words(16), rank=rank if self.engine.ranks > 1 else None)

    def order(self, tenant: str) -> int:
        """Orders everything of a tenant deleted; the order's number."""
        return int(json.loads(self.index.run("delete", "--tenant", tenant, "--json"))["number"])

    def verdict(self, number: int, wait_s: int = 60) -> str:
        """What the auditor says of an order, with its first reasons."""
        audit = ("audit", "run", "--request", str(number), "--wait", str(wait_s), "--json")
        done = kvledger(*audit, home=self.index.home)
        try:
            verdict = json.loads(done.stdout)
            why = ", ".join(sorted({str(reason["reason"]) for reason in verdict["reasons"]})[:3])
            return str(verdict["kind"]) + (f" ({why})" if why else "")
        except (ValueError, KeyError):
            return done.stderr.strip()[-200:]

    def acked(self, number: int) -> str:
        """Waits until every rank of this engine has discharged an order: how they stand, in the end."""
        deadline_s = time.monotonic() + ACKED_S
        while True:
            holders = self.index.order_standing(number)["holders"]
            own = [one for one in holders if one["worker"] == self.engine.name and not one["superseded"]]
            found = {str(one["refused"] or one["standing"]) for one in own}
            if found == {"discharged"} or time.monotonic() > deadline_s:
                return ", ".join(sorted(found))
            time.sleep(0.2)

    def forget(self, adapter: str) -> list[Prompt]:
        """An adapter is another one now: what was sent for it before isn't compared any more. Returns it."""
        gone = [prompt for prompt in self.prompts if prompt.adapter == adapter]
        for prompt in gone:
            del self.prompts[prompt]
        self._tap.forget(adapter)
        return gone

    # --- how it stands ------------------------------------------------------------------------------

    def row(self, scenario: str, note: str = "") -> Row:
        return Row(self.engine.name, scenario, note=note)

    def finish(self, row: Row) -> None:
        self._say(row)

    def known(
        self, prompt: Prompt, since_s: float | None = None, *, rank: int | None = None, profile: str = MODEL
    ) -> Found:
        """What the index says as of a moment after `since_s`, default now; of the rank that the prompt was sent
        to, if no other is named."""
        return self.index.lookup(
            self.engine.name,
            prompt.tokens,
            prompt.domain,
            time.monotonic() if since_s is None else since_s,
            adapter=prompt.adapter,
            rank=(prompt.rank or 0) if rank is None else rank,
            profile=profile,
        )

    def standing(self, prompt: Prompt) -> Found:
        """What the index says now, however old it is."""
        return self.index.standing(
            self.engine.name, prompt.tokens, prompt.domain, adapter=prompt.adapter, rank=prompt.rank or 0
        )

    def check(self, scenario: str, *, absent: bool = False, note: str = "") -> None:
        """`absent`: the engine has begun a new life and said nothing yet, so nothing of it may be credited."""
        row = self.row(scenario, note)
        self.compare(row, absent=absent)
        self.finish(row)

    def compare(self, row: Row, *, absent: bool = False) -> None:
        """Adds to a row how the index stands against the engine."""
        since_s = time.monotonic()
        if self.pools:
            for rank, pool in enumerate(self.pools):
                self._compare_pool(row, rank, pool, since_s)
        elif absent:
            for prompt in list(self.prompts)[-HIT_PROMPTS:]:
                found = self.standing(prompt)
                row.basis.add(found.basis or found.why)
                row.expect(found.blocks, 0, len(prompt.tokens) // BLOCK)
        else:
            for prompt in list(self.prompts)[-HIT_PROMPTS:]:
                self.compare_hit(row, prompt)

    def compare_hit(self, row: Row, prompt: Prompt) -> int:
        """Sends a prompt again: what was predicted, and what the engine had of it in tokens."""
        # The last token is always computed, so the engine looks for what precedes it.
        found = self.known(prompt._replace(tokens=prompt.tokens[:-1]))
        row.basis.add(found.basis or found.why)
        seen = self.again(prompt)
        row.expect(found.blocks, seen // BLOCK, len(prompt.tokens) // BLOCK)
        return seen

    def _compare_pool(self, row: Row, rank: int, pool: Pool, since_s: float) -> None:
        """What is credited must be there at once; what is in doubt isn't credited, and may take a look at the
        pool, for which the bridge has some seconds."""
        deadline_s = since_s + SETTLED_S
        before = row.compared
        while True:
            held = pool.held()
            row.compared = before
            missing = self._compare_once(row, rank, held, since_s)
            if not missing or time.monotonic() > deadline_s:
                row.differences += missing
                return
            since_s = time.monotonic()

    def _compare_once(self, row: Row, rank: int, held: Held, since_s: float) -> int:
        """Blocks that the index doesn't credit, or counts otherwise; those it credits wrongly are in the row."""
        missing = 0
        for prompt in self.prompts:
            chain = self._tap.chain(prompt.tokens, self.salts[prompt.domain], prompt.adapter)
            found = self.known(prompt, since_s, rank=rank)
            row.basis.add(found.basis or found.why)
            row.compared += len(prompt.tokens) // BLOCK
            truth = held.servable(chain)
            row.differences += max(0, found.blocks - truth)
            missing += max(0, truth - found.blocks)
        row.compared += held.blocks
        return missing + abs(held.blocks - self.index.copies(self.engine.name, rank))
