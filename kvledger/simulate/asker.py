"""Asks the real lookup service about prompts, and has every answer judged by the truth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from kvledger.simulate.checker import CheckCounts, Checker
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.fleet_plan import MODEL
from kvledger.simulate.lookup import Credit, Exclusion, Lookup, Outcome, Verdict
from kvledger.simulate.prompt import Prompt
from kvledger.simulate.rest import RestClient, RestError
from kvledger.simulate.truth import TIERS
from router_client.wire import BINARY_TYPE, binary_query

READER = "lookup-service"
WHYS_KEPT = 5
"""Of each outcome."""
PROFILE_GRACE_MS = 5000.0
TRANSIT_MS = 500.0
"""What a pulse may take through a broker on a machine that does everything else as well."""


@dataclass(slots=True)
class Tally:
    """What was asked, and by `judged`, which the checker counts, how it was judged. `whys` holds the first
    faults in words. A lookup that is too early to be judged is asked all the same."""

    judged: CheckCounts
    lookups: int = 0
    refused: int = 0
    latency_ms: list[float] = field(default_factory=list)
    whys: list[str] = field(default_factory=list)

    @property
    def wrong_unflagged(self) -> int:
        return self.judged.outcomes[Outcome.WRONG_UNFLAGGED]

    @property
    def wrong_flagged(self) -> int:
        return self.judged.outcomes[Outcome.WRONG_FLAGGED]

    @property
    def unjustified_refusals(self) -> int:
        return self.judged.outcomes[Outcome.UNJUSTIFIED_REFUSAL]

    @property
    def unjustified_exclusions(self) -> int:
        return self.judged.outcomes[Outcome.UNJUSTIFIED_EXCLUSION]

    @property
    def unjustified_silences(self) -> int:
        return self.judged.outcomes[Outcome.UNJUSTIFIED_SILENCE]

    @property
    def unjustified(self) -> int:
        """Whatever went unsaid for no cause."""
        return self.unjustified_refusals + self.unjustified_exclusions + self.unjustified_silences

    @property
    def excused(self) -> int:
        """Right only because of a disturbance, a deletion, or the horizon."""
        return self.judged.excused

    @property
    def excluded(self) -> Counter[str]:
        """Entries that were left out, by reason."""
        return self.judged.excluded


@dataclass(frozen=True, slots=True)
class Answered:
    """One lookup's outcome. `matched` has leading blocks by worker name, empty unless `status` is 200;
    `question` is the request without its tokens."""

    status: int
    matched: Mapping[str, int]
    document: Any
    end_ns: int
    question: Mapping[str, Any]


class Asker:
    """Lookups for a fleet's prompts over kept connections. Judging is done before a call returns, so the
    order in which answers come is the order in which they are judged."""

    def __init__(self, fleet: Fleet, rest: RestClient, checker: Checker) -> None:
        self.tally = Tally(checker.counts)
        self._fleet = fleet
        self._rest = rest
        self._checker = checker
        self._clock_ns = fleet.truth.now_ns
        self._began_ns = self._clock_ns()
        self._workers = {(worker.name, worker.engine.rank): worker for worker in fleet.workers}
        self._first_served_ns: dict[str, int] = {}

    def served(self, tenant: str) -> None:
        """A request of the tenant was served: from a moment after it on, its profile must be known."""
        self._first_served_ns.setdefault(tenant, self._clock_ns())

    async def ask(
        self,
        prompt: Prompt,
        *,
        bound_ms: float | None,
        candidates: Sequence[str] = (),
        min_coverage: int | None = None,
        measured: bool = True,
        basis: str = "published",
    ) -> Answered:
        """One lookup by tokens; without a bound `consistency: any`. Never raises for what the service does:
        no answer is status 0. `measured` false keeps its time out of the tally."""
        question: dict[str, Any] = {"profile": MODEL, "domain": prompt.tenant}
        if bound_ms is None:
            question["consistency"] = "any"
        else:
            question["max_staleness_ms"] = bound_ms
        if candidates:
            question["candidates"] = list(candidates)
        if min_coverage is not None:
            question["min_coverage"] = min_coverage
        if basis != "published":
            question["basis"] = basis
        target = f"/v1/lookup?{urlencode(binary_query(question))}"
        body = prompt.token_bytes()
        start_ns = self._clock_ns()
        try:
            reply = await self._rest.request("POST", target, body=body, content_type=BINARY_TYPE)
            end_ns = self._clock_ns()
            status, document = reply.status, reply.json()
        except RestError:
            end_ns = self._clock_ns()
            status, document = 0, {}
        if measured:
            self.tally.latency_ms.append((end_ns - start_ns) / 1e6)
        self._judge(prompt, bound_ms, candidates, min_coverage, basis, start_ns, end_ns, status, document)
        matched = (
            {m["worker"]: int(m["matched_blocks"]) for m in document["matches"]} if status == 200 else {}
        )
        return Answered(status, matched, document, end_ns, question)

    def _judge(
        self,
        prompt: Prompt,
        bound_ms: float | None,
        candidates: Sequence[str],
        min_coverage: int | None,
        basis: str,
        start_ns: int,
        end_ns: int,
        status: int,
        document: Any,
    ) -> None:
        tally = self.tally
        tally.lookups += 1
        tally.refused += status != 200
        if status == 404:
            served_ns = self._first_served_ns.get(prompt.tenant)
            if served_ns is None or start_ns - served_ns < PROFILE_GRACE_MS * 1e6:
                return
        credits: list[Credit] = []
        exclusions: list[Exclusion] = []
        if status == 200:
            size = prompt.block_size
            credits = [self._credit(match, size) for match in document["matches"]]
            exclusions = [_exclusion(entry) for entry in document["excluded"]]
        verdict = self._checker.check(
            Lookup(
                reader=READER,
                tenant=prompt.tenant,
                chain=prompt.keys,
                bound_ms=bound_ms,
                start_ns=start_ns,
                end_ns=end_ns,
                status=status,
                credits=credits,
                exclusions=exclusions,
                complete=status == 200 and document["complete"] is True,
                staleness_ms=document.get("staleness_ms") if status == 200 else None,
                min_coverage=min_coverage,
                limited=bool(candidates),
                candidates=tuple(candidates) or None,
                basis=basis,
                coverage=_coverage(document) if status == 200 else None,
            )
        )
        self._note(verdict)

    def _note(self, verdict: Verdict) -> None:
        tally, outcome = self.tally, verdict.outcome
        if outcome is Outcome.OK:
            return
        if sum(why.startswith(outcome.value) for why in tally.whys) < WHYS_KEPT:
            since_s = (self._clock_ns() - self._began_ns) / 1e9
            tally.whys.append(f"{outcome.value} after {since_s:.1f} s: {verdict.why}")

    def _credit(self, match: Any, block_size: int) -> Credit:
        position = match["position"]
        worker = self._workers.get((match["worker"], match["dp_rank"]))
        missing_ns = None
        if worker is not None:
            missing_ns = worker.first_missing_ns(position["epoch"], position["next_seq"])
        staleness_ms = match["staleness_ms"]
        return Credit(
            worker=match["worker"],
            rank=match["dp_rank"],
            matched_blocks=match["matched_blocks"],
            staleness_ms=math.nan if staleness_ms is None else float(staleness_ms),
            within_bound=match["within_bound"] is True,
            basis=match["basis"],
            epoch=position["epoch"],
            first_missing_ns=missing_ns,
            next_seq=position["next_seq"],
            tier_blocks=_tier_blocks(match["tiers"], block_size),
            identity=match["identity"],
            at_least=match["inventory"] == "partial",
        )


def _exclusion(entry: Any) -> Exclusion:
    rank = entry["dp_rank"]
    return Exclusion(
        entry["worker"], -1 if rank is None else rank, entry["reason"], entry.get("staleness_ms")
    )


def _tier_blocks(tiers: Any, block_size: int) -> tuple[int, int, int, int]:
    gpu, cpu, disk, remote = (int(tiers[tier]) // block_size for tier in TIERS)
    return gpu, cpu, disk, remote


def _coverage(document: Any) -> tuple[int, int]:
    return int(document["coverage"]["included"]), int(document["coverage"]["eligible"])
