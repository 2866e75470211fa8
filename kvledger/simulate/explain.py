"""A violation with its records: what was asked and answered, what was true around it, what would have been right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvledger.simulate.answer_rule import NS_PER_MS, ns
from kvledger.simulate.lookup import Lookup, Verdict
from kvledger.simulate.residency import ResidencyLog, when_length
from kvledger.simulate.truth import TIERS, Truth
from kvledger.simulate.vouch import WorkerRank

AROUND_MS = 2000.0
SHOWN = 40
"""Records of each kind in an explanation; those nearest to the end of the read are kept."""


@dataclass(frozen=True, slots=True)
class Change:
    """One mutation of a block at stake: `block` is its place in the asked chain."""

    at_ms: float
    tier: str
    block: int
    stored: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """All times are milliseconds relative to the start of the read, earlier ones negative.

    `window_ms` is where the answer had to be true, None if nothing of it was judged by an instant. `right`
    are the lengths that were true in the window, in the order in which they came. `true_until_ms` is the
    newest instant before the window at which the credited length was true.
    """

    outcome: str
    why: str
    worker: str
    rank: int
    reader: str
    tenant: str
    blocks: int
    bound_ms: float | None
    took_ms: float
    status: int
    answer: dict[str, Any]
    window_ms: tuple[float, float] | None
    right: tuple[int, ...]
    true_until_ms: float | None
    changes: tuple[Change, ...]
    lives: tuple[tuple[str, float], ...]
    pulses: tuple[tuple[float, float], ...]
    disturbances: tuple[dict[str, Any], ...]

    def document(self) -> dict[str, Any]:
        """For programs; only JSON's types."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people, the verdict first."""
        bound = "any age" if self.bound_ms is None else f"a bound of {self.bound_ms:g} ms"
        out = [
            f"{self.outcome}: {self.why}",
            f"  asked {self.blocks} blocks of {self.tenant} within {bound}; status {self.status} in"
            f" {self.took_ms:.1f} ms from {self.reader}",
            f"  answered {_flat(self.answer)}",
        ]
        if self.window_ms is not None:
            low, high = self.window_ms
            out.append(f"  true from {low:.1f} to {high:.1f} ms: {', '.join(map(str, self.right))} blocks")
        if self.true_until_ms is not None:
            out.append(f"  the answer was last true at {self.true_until_ms:.1f} ms")
        out += [f"  {at:10.1f} ms  engine life {life} began" for life, at in self.lives]
        out += [
            f"  {c.at_ms:10.1f} ms  block {c.block} {'stored' if c.stored else 'dropped'} on {c.tier}"
            for c in self.changes
        ]
        out += [f"  {sent:10.1f} ms  pulse, confirms {made:.1f} ms" for sent, made in self.pulses]
        out += [f"  disturbed: {_flat(one)}" for one in self.disturbances]
        return out


def explain(truth: Truth, lookup: Lookup, verdict: Verdict) -> Explanation:
    """What there is to say about one judged lookup, as of now; bounded in size."""
    who = (verdict.worker, verdict.rank)
    start_ns = lookup.start_ns

    def ms(at_ns: int) -> float:
        return round((at_ns - start_ns) / NS_PER_MS, 3)

    answer, length, low_ns = _answer(lookup, who)
    since_ns = (start_ns if low_ns is None else low_ns) - ns(AROUND_MS)
    until_ns = lookup.end_ns + ns(AROUND_MS)
    levels = truth.levels_of(who)
    logs = levels[-1]
    changes = sorted(
        (stamp, tier, at, stored)
        for tier, log in zip(TIERS, _own(levels), strict=True)
        if log is not None
        for stamp, at, stored in log.changes_of(lookup.chain, since_ns, until_ns)
    )
    window = right = None
    if low_ns is not None and logs:
        window = (ms(low_ns), ms(lookup.end_ns))
        right = _lengths(logs, lookup.chain, low_ns, lookup.end_ns, [c[0] for c in changes])
    disturbed = truth.disturbances.touching(verdict.worker or None, since_ns, lookup.end_ns)
    return Explanation(
        outcome=verdict.outcome.value,
        why=verdict.why,
        worker=verdict.worker,
        rank=verdict.rank,
        reader=lookup.reader,
        tenant=lookup.tenant,
        blocks=len(lookup.chain),
        bound_ms=lookup.bound_ms,
        took_ms=ms(lookup.end_ns),
        status=lookup.status,
        answer=answer,
        window_ms=window,
        right=tuple(right or ()),
        true_until_ms=_last_true(logs, lookup, length, low_ns),
        changes=tuple(Change(ms(s), tier, at, stored) for s, tier, at, stored in changes[-SHOWN:]),
        lives=tuple((life, ms(at)) for life, at in (logs[0].lives[-3:] if logs else ())),
        pulses=tuple(
            (ms(sent), ms(confirmed)) for sent, confirmed in truth.vouches.within(who, since_ns, until_ns)
        )[-SHOWN:],
        disturbances=tuple(
            {
                "of": one.worker or "everybody",
                "kind": one.kind,
                "from_ms": ms(one.period.start_ns),
                "to_ms": None if one.period.end_ns is None else ms(one.period.end_ns),
            }
            for one in disturbed[-SHOWN:]
        ),
    )


def _answer(lookup: Lookup, who: WorkerRank) -> tuple[dict[str, Any], int | None, int | None]:
    """(what was said of the worker, the length credited, where its window begins)."""
    for credit in lookup.credits:
        if (credit.worker, credit.rank) == who:
            stale_ms = credit.staleness_ms
            low_ns = lookup.start_ns - ns(stale_ms) if math.isfinite(stale_ms) else None
            said = asdict(credit)
            said["staleness_ms"] = stale_ms if math.isfinite(stale_ms) else None
            missing_ns = said.pop("first_missing_ns")
            if missing_ns is not None:
                said["first_missing_ms"] = round((missing_ns - lookup.start_ns) / NS_PER_MS, 3)
            return said, credit.matched_blocks, low_ns
    for one in lookup.exclusions:
        if (one.worker, one.rank) == who:
            return asdict(one), None, None
    said = {"complete": lookup.complete, "staleness_ms": lookup.staleness_ms, "coverage": lookup.coverage}
    if not lookup.complete or lookup.staleness_ms is None:
        return said, None, None
    return said, 0, lookup.start_ns - ns(lookup.staleness_ms)


def _own(levels: Sequence[Sequence[ResidencyLog]]) -> list[ResidencyLog | None]:
    """Each tier's own log."""
    own: list[ResidencyLog | None] = []
    before = 0
    for logs in levels:
        own.append(logs[-1] if len(logs) > before else None)
        before = len(logs)
    return own


def _lengths(
    logs: Sequence[ResidencyLog], chain: Sequence[int], low_ns: int, high_ns: int, stamps: Sequence[int]
) -> list[int]:
    instants = [low_ns, *(s for s in stamps if low_ns < s <= high_ns)][-SHOWN:]
    found: list[int] = []
    for at in instants:
        length = _length_at(logs, chain, at)
        if not found or found[-1] != length:
            found.append(length)
    return found


def _length_at(logs: Sequence[ResidencyLog], chain: Sequence[int], at_ns: int) -> int:
    for index, key in enumerate(chain):
        if not any(log.when_there(key, [(at_ns, at_ns)]) for log in logs):
            return index
    return len(chain)


def _last_true(
    logs: Sequence[ResidencyLog], lookup: Lookup, length: int | None, low_ns: int | None
) -> float | None:
    if length is None or low_ns is None or not logs:
        return None
    spans = when_length(logs, lookup.chain, length, [(max(0, logs[0].forgotten_ns), low_ns)])
    return round((spans[-1][1] - lookup.start_ns) / NS_PER_MS, 3) if spans else None


def _flat(document: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in document.items() if value is not None)
