"""Tenants deleted in the midst of kills, their verdicts, and whether the engines agree."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.live.endurance.asker import Asker
from tests.live.endurance.load import Load, Prompt
from tests.live.endurance.wire_history import WireHistory
from tests.live.engine import LiveEngine
from tests.live.index import Index
from tests.support.command import kvledger

ORDER_WITHIN_S = 90.0
AUDIT_WAIT_S = "60"
CODES = {0: "PROVEN", 1: "REFUTED", 2: "UNPROVABLE", 3: "PENDING"}


@dataclass(slots=True)
class Deletion:
    """`left` blocks of the tenant that engines still had when the verdict was PROVEN, `hits` tokens that one of
    its prompts found then: both must be 0. `verified`: the bundle's verdict, recomputed offline."""

    tenant: str
    at_s: float
    ordered_s: float = 0.0
    tries: int = 0
    number: int | None = None
    verdict: str = "not ordered"
    reasons: list[str] = field(default_factory=list)
    verified: str = ""
    left: int = 0
    hits: int = 0

    @property
    def sound(self) -> bool:
        """Nothing is called proven that isn't."""
        return self.number is not None and self.verdict == self.verified and not self.left and not self.hits


class Deletions:
    """Deletes one of `tenants` at a time; each only once."""

    def __init__(
        self,
        index: Index,
        engines: Mapping[str, LiveEngine],
        loads: Mapping[str, Load],
        histories: Mapping[str, WireHistory],
        salts: Mapping[str, str | None],
        tenants: list[str],
        folder: Path,
    ) -> None:
        self.made: list[Deletion] = []
        self._prompts: dict[str, dict[str, list[Prompt]]] = {}
        self._index = index
        self._engines = engines
        self._loads = loads
        self._histories = histories
        self._salts = salts
        self._tenants = tenants
        self._folder = folder

    @property
    def left(self) -> int:
        """Tenants that can be deleted."""
        return len(self._tenants)

    @property
    def deleted(self) -> set[str]:
        return {one.tenant for one in self.made}

    def retire(self, asker: Asker) -> Deletion:
        """Nobody asks anything for the next tenant any more; what is deleted is all that there will be."""
        tenant = self._tenants.pop()
        self._prompts[tenant] = {}
        for name, load in self._loads.items():
            load.retire(tenant)
            self._prompts[tenant][name] = [one for one in load.recent() if one[1] == tenant]
        asker.hide(tenant)
        deletion = Deletion(tenant, time.monotonic())
        self.made.append(deletion)
        return deletion

    def order(self, deletion: Deletion) -> None:
        """Writes the request, again while the log is away; the key makes it the same one."""
        command = ("delete", "--tenant", deletion.tenant, "--idempotency-key", deletion.tenant, "--json")
        began_s = time.monotonic()
        while deletion.number is None and time.monotonic() - began_s < ORDER_WITHIN_S:
            deletion.tries += 1
            done = kvledger(*command, home=self._index.home)
            if done.returncode == 0:
                deletion.number = json.loads(done.stdout)["number"]
            else:
                deletion.reasons = [done.stderr.strip()[-200:]]
        deletion.ordered_s = time.monotonic() - began_s

    def judge(self, deletion: Deletion) -> None:
        """The auditor's verdict, and what a stranger makes of its bundle."""
        if deletion.number is None:
            return
        bundle = self._folder / f"{deletion.tenant}.jsonl"
        run = ("audit", "run", "--request", str(deletion.number), "--wait", AUDIT_WAIT_S, "--json")
        done = kvledger(*run, "--bundle", str(bundle), home=self._index.home)
        try:
            document = json.loads(done.stdout)
            deletion.verdict = str(document["kind"])
            deletion.reasons = [str(reason["reason"]) for reason in document["reasons"]]
        except (ValueError, KeyError):
            deletion.verdict, deletion.reasons = f"exit code {done.returncode}", [done.stderr.strip()[-200:]]
        if bundle.exists():
            key = self._index.home / "keys" / "operator.pub"
            found = kvledger("audit", "verify", str(bundle), "--key", str(key), home=self._index.home)
            deletion.verified = CODES.get(found.returncode, f"exit code {found.returncode}")

    def look(self, deletion: Deletion) -> None:
        """What the engines hold of a tenant whose deletion is PROVEN, while nothing else runs; once only, as it
        leaves something behind."""
        if deletion.verdict != "PROVEN" or deletion.tenant not in self._prompts:
            return
        salt = self._salts[deletion.tenant]
        for name, prompts in self._prompts.pop(deletion.tenant).items():
            history = self._histories[name]
            held = history.history.held()
            names = {one for tokens, _ in prompts for one in history.chain(tokens, salt)}
            deletion.left += len(names & held)
            # One only: what it stores is new, and the next one could hit it.
            for tokens, _ in prompts[:1]:
                deletion.hits += self._engines[name].delivered(tokens, salt=salt)
