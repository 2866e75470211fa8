"""A pure model of engines, log, pulses and one reader in virtual milliseconds, with one rule made wrong at will.

It yields lookups as the reader would answer them, and the truth, so that a test can see whether the checker
tells the right rules from each wrong one. Transport stalls are known to the truth as disturbances.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from kvledger.simulate.lookup import Credit, Exclusion, Lookup
from kvledger.simulate.truth import Truth

HORIZON_MS = 30_000.0
BOUND_MS = 600.0
TRANSIT_MS = 60.0
DOWN_MS, REOPEN_MS = 300.0, 900.0
CHAIN = tuple(range(100, 108))


class Rule(StrEnum):
    """`RIGHT`, or what is wrong."""

    RIGHT = "right"
    ECHO_FROM_TIMER = "echo_from_timer"
    WATERMARK_BEFORE_ROWS = "watermark_before_rows"
    STALENESS_FROM_APPEND = "staleness_from_append"
    ABSENCE_WITHOUT_COVERAGE = "absence_without_coverage"
    EPOCH_UNCHECKED = "epoch_unchecked"
    BLANKET_REFUSAL = "blanket_refusal"
    BLANKET_SILENCE = "blanket_silence"


@dataclass(slots=True)
class VirtualClock:
    now_ms: float = 0.0

    def __call__(self) -> int:
        return ns(self.now_ms)


def ns(ms: float) -> int:
    return round(ms * 1e6)


@dataclass(slots=True)
class _Step:
    start_ms: float
    end_ms: float
    epoch: int
    seq: int
    length: int
    first_made_ms: float
    appended_ms: float = 0.0
    visible_ms: float = 0.0
    committed_ms: float = 0.0


@dataclass(slots=True)
class _Pulse:
    arrives_ms: float
    epoch: int
    next_seq: int
    as_of_ms: float


@dataclass(slots=True)
class _Worker:
    name: str
    restart_ms: float
    opened_ms: float
    steps: list[_Step] = field(default_factory=list)
    pulses: list[_Pulse] = field(default_factory=list)


class StreamModel:
    """Two workers: one restarts half way, one is unknown to the reader for the first seconds."""

    def __init__(self, rule: Rule, seed: int) -> None:
        self._rule = rule
        self._random = random.Random(seed)
        self._clock = VirtualClock()
        self.truth = Truth(self._clock)
        self._beacons = self._make_beacons()
        self._workers = [_Worker("a", HORIZON_MS / 2, 0.0), _Worker("b", 2 * HORIZON_MS, 4000.0)]
        for worker in self._workers:
            self._run_engine(worker)
            self._deliver(worker)
            self._pulse(worker)
        self._clock.now_ms = 0.0

    def lookups(self, count: int, *, positions: bool) -> Iterator[Lookup]:
        """Reads in order; with `positions` each credit says what its state is missing."""
        for at_ms in sorted(self._random.uniform(2500, HORIZON_MS - 3000) for _ in range(count)):
            credits: list[Credit] = []
            exclusions: list[Exclusion] = []
            worst_ms = 0.0
            for worker in self._workers:
                if at_ms < worker.opened_ms:
                    if self._rule != Rule.ABSENCE_WITHOUT_COVERAGE:
                        exclusions.append(Exclusion(worker.name, 0, "unopened"))
                    continue
                stale_ms, credit = self._answer(worker, at_ms, positions)
                if stale_ms > BOUND_MS:
                    exclusions.append(Exclusion(worker.name, 0, "stale"))
                else:
                    worst_ms = max(worst_ms, stale_ms)
                    if credit.matched_blocks:
                        credits.append(credit)
            silent = self._rule == Rule.BLANKET_SILENCE
            refused = len(exclusions) == 2 or self._rule == Rule.BLANKET_REFUSAL
            yield Lookup(
                "reader",
                "tenant",
                CHAIN,
                BOUND_MS,
                ns(at_ms),
                ns(at_ms + 1),
                503 if refused else 200,
                () if refused or silent else credits,
                () if silent else exclusions,
                complete=not refused and not silent and not exclusions,
                staleness_ms=worst_ms,
            )

    def _answer(self, worker: _Worker, at_ms: float, positions: bool) -> tuple[float, Credit]:
        applied = [step for step in worker.steps if step.committed_ms <= at_ms]
        newest = applied[-1] if applied else None
        marked = newest
        if self._rule == Rule.WATERMARK_BEFORE_ROWS:
            marked = next((s for s in reversed(worker.steps) if s.visible_ms <= at_ms), None)
        epoch, next_seq = (marked.epoch, marked.seq + 1) if marked else (0, 0)
        as_of_ms = -1e9
        for pulse in worker.pulses:
            same = pulse.epoch == epoch or self._rule == Rule.EPOCH_UNCHECKED
            if pulse.arrives_ms <= at_ms and same and pulse.next_seq <= next_seq:
                as_of_ms = max(as_of_ms, pulse.as_of_ms)
        if self._rule == Rule.STALENESS_FROM_APPEND and newest is not None:
            behind = any(step.appended_ms <= at_ms < step.committed_ms for step in worker.steps)
            as_of_ms = newest.appended_ms if behind else at_ms
        missing = next((s.first_made_ms for s in worker.steps if s.committed_ms > at_ms), None)
        stale_ms = at_ms - as_of_ms
        return stale_ms, Credit(
            worker.name,
            0,
            newest.length if newest else 0,
            stale_ms,
            epoch=f"{worker.name}{epoch}",
            first_missing_ns=ns(missing) if positions and missing is not None else None,
        )

    def _delay_ms(self, scope: str | None, at_ms: float, low: float, high: float) -> float:
        if self._random.random() >= 0.003:
            return self._random.uniform(low, high)
        delay_ms = self._random.uniform(200, 2000)
        self._clock.now_ms = at_ms
        self.truth.disturb(scope)
        self._clock.now_ms = at_ms + delay_ms
        self.truth.calm(scope)
        return delay_ms

    def _make_beacons(self) -> list[tuple[float, float]]:
        """(begun, seen by the hooks), in order."""
        beacons: list[tuple[float, float]] = []
        seen_ms = 0.0
        for index in range(int(HORIZON_MS / 100)):
            begun_ms = index * 100.0
            seen_ms = max(seen_ms, begun_ms + self._delay_ms(None, begun_ms, 2, 16))
            beacons.append((begun_ms, seen_ms))
        return beacons

    def _run_engine(self, worker: _Worker) -> None:
        rng, clock = self._random, self._clock
        log = self.truth.log_of(worker.name)
        clock.now_ms = 0.0
        self.truth.enlist(worker.name)
        if worker.opened_ms:
            self.truth.disturb(worker.name)
            clock.now_ms = worker.opened_ms
            self.truth.calm(worker.name)
            clock.now_ms = 0.0
        log.begin_life("0")
        now_ms, epoch, seq, length = 1.0, 0, 0, 0
        while now_ms < HORIZON_MS:
            if epoch == 0 and now_ms > worker.restart_ms:
                clock.now_ms = now_ms
                log.begin_life("1")
                self.truth.disturb(worker.name)
                first_ms, epoch, seq, length = now_ms, 1, 0, 0
                now_ms += DOWN_MS
                clock.now_ms = now_ms + REOPEN_MS
                self.truth.calm(worker.name)
                worker.steps.append(_Step(now_ms - 1, now_ms, epoch, seq, 0, first_ms))
                seq += 1
            took_ms = rng.uniform(300, 1500) if rng.random() < 0.02 else rng.uniform(5, 40)
            if rng.random() < 0.3:
                made_ms = now_ms + rng.uniform(0.1, took_ms * 0.2)
                clock.now_ms = made_ms
                if length and (length == len(CHAIN) or rng.random() < 0.5):
                    length -= 1
                    log.drop(CHAIN[length])
                else:
                    log.store([CHAIN[length]])
                    length += 1
                worker.steps.append(_Step(now_ms, now_ms + took_ms, epoch, seq, length, made_ms))
                seq += 1
            now_ms += took_ms + rng.uniform(0, 3)

    def _deliver(self, worker: _Worker) -> None:
        appended_ms = visible_ms = committed_ms = 0.0
        for step in worker.steps:
            if (step.epoch, step.seq) == (1, 0):
                visible_ms = step.end_ms + REOPEN_MS - 100
            appended_ms = max(appended_ms, step.end_ms + self._delay_ms(worker.name, step.end_ms, 1, 10))
            visible_ms = max(visible_ms, appended_ms + self._delay_ms(worker.name, appended_ms, 1, 10))
            committed_ms = max(committed_ms, visible_ms + self._delay_ms(worker.name, visible_ms, 1, 10))
            step.appended_ms, step.visible_ms, step.committed_ms = appended_ms, visible_ms, committed_ms

    def _pulse(self, worker: _Worker) -> None:
        """Every 200 ms; a hook may echo what it saw before the last instant at which nothing was unpublished."""
        begun, seen = [b for b, _ in self._beacons], [s for _, s in self._beacons]
        opened_ms = [s.start_ms for s in worker.steps if s.epoch == 1 and s.seq == 0]
        for index in range(1, int(HORIZON_MS / 200)):
            now_ms = index * 200.0
            if opened_ms and worker.restart_ms < now_ms <= opened_ms[0] + 1:
                continue
            sent = [s for s in worker.steps if s.end_ms <= now_ms]
            within = [s for s in worker.steps if s.start_ms <= now_ms < s.end_ms]
            epoch, next_seq = (sent[-1].epoch, sent[-1].seq + 1) if sent else (0, 0)
            quiet_ms = within[0].start_ms if within else now_ms
            confirmed_ms = now_ms if self._rule == Rule.ECHO_FROM_TIMER else quiet_ms
            newest = bisect_right(seen, confirmed_ms) - 1
            arrives_ms = now_ms + self._delay_ms(worker.name, now_ms, 2, 25)
            if newest >= 0:
                worker.pulses.append(_Pulse(arrives_ms, epoch, next_seq, begun[newest]))
                self._clock.now_ms = now_ms
                self.truth.vouch(worker.name, 0, ns(min(quiet_ms, now_ms)))
