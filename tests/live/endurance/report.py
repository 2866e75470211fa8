"""What an endurance run found, as one JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.live.endurance.asker import Answer, Asker
from tests.live.endurance.bridges import Exit
from tests.live.endurance.deletion import Deletion
from tests.live.endurance.history import Doubt
from tests.live.endurance.load import Request
from tests.live.endurance.machine import Machine
from tests.live.endurance.standing import Standing
from tests.live.endurance.strike import Strike
from tests.live.steps import Span, Step, quantile, read_steps, spread_ms, standstills

STALL_S = 1.0
"""So long a time without a step while somebody waits, not for want of a processor, is a stall."""


class Periods:
    """The run's time: `control` before anything was attached, `struck` from a strike to the moment that all is
    answered again, `calm` between them."""

    def __init__(self, began_s: float, attached_s: float, strikes: Sequence[Strike], now_s: float) -> None:
        self.spans: dict[str, list[Span]] = {"control": [(began_s, attached_s)], "calm": [], "struck": []}
        last_s = attached_s
        for strike in strikes:
            ended_s = strike.whole_s or (strike.over_s or now_s) + 120
            self.spans["calm"].append((last_s, strike.began_s))
            self.spans["struck"].append((strike.began_s, ended_s))
            last_s = ended_s
        self.spans["calm"].append((last_s, now_s))

    def of(self, at_s: float) -> str:
        for name in ("struck", "control"):
            if any(began_s <= at_s <= ended_s for began_s, ended_s in self.spans[name]):
                return name
        return "calm"

    def seconds(self) -> dict[str, float]:
        return {
            name: round(sum(ended_s - began_s for began_s, ended_s in spans), 1)
            for name, spans in self.spans.items()
        }


def engine_report(requests: Sequence[Request], steps: Sequence[Step], periods: Periods) -> dict[str, Any]:
    """Requests, step times and standstills of one engine, in each period."""
    served = [one for one in requests if not one.left]
    failed = [one for one in requests if one.failure]
    stills = list(standstills([(one.began_s, one.ended_s) for one in served], steps))
    found: dict[str, Any] = {
        "requests": len(served),
        "callers_gone": len(requests) - len(served),
        "failed": len(failed),
        "failures": sorted({one.failure for one in failed}),
    }
    for name in periods.spans:
        own = [step for step in steps if periods.of(step.ended_s) == name]
        found[name] = {
            "latency": spread_ms(
                one.ended_s - one.began_s for one in served if periods.of(one.began_s) == name
            ),
            "steps": spread_ms(step.took_s for step in own),
            "steps_on_a_processor": spread_ms(max(0.0, step.took_s - step.unserved_s) for step in own),
            "without_a_step_while_asked": spread_ms(
                took for at_s, took in stills if periods.of(at_s) == name
            ),
        }
    return found


def strike_rows(
    strikes: Iterable[Strike],
    began_s: float,
    requests: Mapping[str, Sequence[Request]],
    steps: Mapping[str, Sequence[Step]],
) -> list[dict[str, Any]]:
    """The table of strikes: when, what, how long until all is answered, and the worst of each engine meanwhile."""
    rows = []
    for strike in strikes:
        ended_s = strike.whole_s or strike.over_s + 120
        longest = {
            name: max((one.took_s for one in own if strike.began_s <= one.ended_s <= ended_s), default=0.0)
            for name, own in steps.items()
        }
        slowest = {
            name: max(
                (
                    one.ended_s - one.began_s
                    for one in own
                    if strike.began_s <= one.ended_s <= ended_s and not one.left
                ),
                default=0.0,
            )
            for name, own in requests.items()
        }
        rows.append(
            {
                "at_s": round(strike.began_s - began_s, 1),
                "kind": strike.kind,
                "what": strike.what,
                "lasted_s": round(strike.over_s - strike.began_s, 1),
                "answered_again_after_s": None
                if strike.whole_s is None
                else round(strike.whole_s - strike.over_s, 1),
                "longest_step_ms": {name: round(1_000 * value, 1) for name, value in longest.items()},
                "slowest_request_ms": {name: round(1_000 * value, 1) for name, value in slowest.items()},
            }
        )
    return rows


def answers_report(
    asker: Asker, answers: Sequence[Answer], periods: Periods, began_s: float
) -> dict[str, Any]:
    """What lookups said under load."""
    found: dict[str, Any] = {
        "asked": len(answers),
        "judged": asker.judged,
        "blocks": asker.blocks,
        "wrong": [
            asdict(one) | {"doubt": one.doubt.value, "at_s": round(one.at_s - began_s, 3)}
            for one in asker.wrong
            if one.doubt is Doubt.TOO_MUCH
        ],
        # Complete, and shorter than what was there all the time.
        "short": dict(Counter(one.engine for one in asker.wrong if one.doubt is Doubt.TOO_LITTLE)),
    }
    for name in ("calm", "struck"):
        own = [one for one in answers if periods.of(one.asked_s) == name]
        answered = [one for one in own if one.as_of_s is not None]
        found[name] = {
            "asked": len(own),
            "answered": len(answered),
            "not_answered": asker.reasons(own),
            "staleness": spread_ms(one.asked_s - one.as_of_s for one in answered if one.as_of_s is not None),
            "took": spread_ms(one.answered_s - one.asked_s for one in own),
        }
    return found


def memory_report(machine: Machine, attached_s: float) -> dict[str, dict[str, float]]:
    """MiB of each process (or group) over the run: the median of the first minute after the start, of the middle
    and of the last minute, and the highest."""
    found = {}
    names = {name for sample in machine.samples for name in sample.rss_mib}
    for name in sorted(names):
        sizes = [
            (sample.at_s, sample.rss_mib.get(name, 0.0))
            for sample in machine.samples
            if sample.rss_mib.get(name, 0.0) > 0 and sample.at_s > attached_s
        ]
        if not sizes:
            continue
        first_s, last_s = sizes[0][0], sizes[-1][0]
        middle_s = (first_s + last_s) / 2
        parts = {
            "first_minute": [size for at_s, size in sizes if at_s <= first_s + 60],
            "middle": [size for at_s, size in sizes if abs(at_s - middle_s) <= 30],
            "last_minute": [size for at_s, size in sizes if at_s >= last_s - 60],
        }
        found[name] = {part: round(quantile(sorted(values), 0.5), 1) for part, values in parts.items()}
        found[name]["highest"] = round(max(size for _, size in sizes), 1)
    return found


def machine_report(machine: Machine, began_s: float) -> dict[str, Any]:
    busy = sorted(sample.busy for sample in machine.samples)
    worst = sorted(machine.late, key=lambda one: -one[1])[:5]
    return {
        "busy": {"p50": round(quantile(busy, 0.5), 3), "p95": round(quantile(busy, 0.95), 3)},
        "stood_still": {
            "times": len(machine.late),
            "longest": [
                {"at_s": round(at_s - began_s, 1), "ms": round(1_000 * late_s, 1)} for at_s, late_s in worst
            ],
        },
    }


def standing_row(one: Standing, began_s: float) -> dict[str, Any]:
    shown = asdict(one) | {"basis": sorted(one.basis), "at_s": round(one.at_s - began_s, 1)}
    return shown | {"settled_s": round(one.settled_s, 2), "equal": one.equal}


def exits_report(exits: Sequence[Exit], began_s: float) -> dict[str, Any]:
    own = [one for one in exits if not one.killed]
    return {
        "killed": len(exits) - len(own),
        "of_themselves": [
            {"at_s": round(one.at_s - began_s, 1), "engine": one.engine, "code": one.code} for one in own
        ],
    }


def deletion_row(one: Deletion, began_s: float) -> dict[str, Any]:
    shown = asdict(one) | {"at_s": round(one.at_s - began_s, 1), "ordered_s": round(one.ordered_s, 1)}
    return shown | {"sound": one.sound}


def stalls(
    steps: Mapping[str, Sequence[Step]], stills: Mapping[str, Sequence[tuple[float, float]]]
) -> list[str]:
    """Steps and standstills that are longer than they may be and than the machine accounts for."""
    found = []
    for name, own in steps.items():
        late = [step for step in own if step.took_s - step.unserved_s > STALL_S]
        found += [
            f"{name}: a step of {step.took_s:.2f} s ({step.unserved_s:.2f} s unserved)" for step in late
        ]
    for name, gaps in stills.items():
        found += [f"{name}: {took:.2f} s without a step while asked" for _, took in gaps if took > STALL_S]
    return found


def read_all(files: Mapping[str, Path]) -> dict[str, list[Step]]:
    return {name: read_steps(file) for name, file in files.items()}
