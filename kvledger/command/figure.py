"""What a lookup service says of its canary and its bounds, read from its `/metrics` for `kvledger status`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_S = 2.0
NEAR = 0.5
"""Share of a bound from which it is worth a line."""
WINDOWS = frozenset({"beacons"})
"""The newest of these are kept, so after some minutes they always reach their bound."""


@dataclass(slots=True)
class Figures:
    """`held` by kind: (how much, the most that may be; infinite: the log's own length). `lost` by reason: what
    was given up, refused or cut off at a bound."""

    canary: dict[str, float] = field(default_factory=dict)
    held: dict[str, tuple[float, float]] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)
    troubles: dict[str, float] = field(default_factory=dict)
    """Streams by trouble, those that have any."""


def read_figures(url: str) -> Figures | None:
    """None if there is no service, or it doesn't answer in time."""
    import httpx

    if not url:
        return None
    try:
        response = httpx.get(f"{url}/metrics", timeout=TIMEOUT_S, trust_env=False)
        response.raise_for_status()
    except httpx.HTTPError:
        return None
    return parse(response.text)


def parse(page: str) -> Figures:
    """The figures in a page in Prometheus' text format."""
    from prometheus_client.parser import text_string_to_metric_families

    found, held, bounds = Figures(), dict[str, float](), dict[str, float]()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            name, value = sample.name.removeprefix("kvledger_"), sample.value
            if name.startswith("canary_"):
                found.canary[name.removeprefix("canary_")] = value
            elif name == "held":
                held[sample.labels["kind"]] = value
            elif name == "held_bound":
                bounds[sample.labels["kind"]] = value
            elif name == "troubled_streams" and value:
                found.troubles[sample.labels["trouble"]] = value
            elif name in ("shed_streams_total", "refused_streams_total") and value:
                found.lost[name.removesuffix("_total")] = value
            elif name in ("forgotten_total", "cut_off_total") and value:
                found.lost[sample.labels.get("kind") or sample.labels["reason"]] = value
    found.held = {kind: (value, bounds.get(kind, math.inf)) for kind, value in held.items()}
    return found


def document_of(figures: Figures | None) -> dict[str, Any] | None:
    """For `--json`: what is infinite or unknown is null."""
    if figures is None:
        return None
    return {
        "canary": {name: value if math.isfinite(value) else None for name, value in figures.canary.items()},
        "held": {
            kind: {"now": value, "bound": bound if math.isfinite(bound) else None}
            for kind, (value, bound) in figures.held.items()
        },
        "lost_at_bounds": figures.lost,
        "troubled_streams": figures.troubles,
    }


def lines_of(figures: Figures | None) -> list[str]:
    """For people: the canary, what is near its bound, and what was lost at one."""
    if figures is None:
        return []
    near = [
        f"{kind.replace('_', ' ')} {value:,.0f} of {bound:,.0f}"
        for kind, (value, bound) in figures.held.items()
        if value >= NEAR * bound and kind not in WINDOWS
    ]
    lines = [f"{'Canary':<11}{_canary(figures.canary)}", f"{'Bounds':<11}{', '.join(near) or 'none is near'}"]
    if figures.troubles:
        told = ", ".join(f"{name.replace('_', ' ')} {n:,.0f}" for name, n in figures.troubles.items())
        lines.append(f"{'Streams':<11}{told}; /v1/workers names them")
    unpublished = figures.troubles.get("unpublished", 0.0)
    if unpublished:
        lines.append(
            f"{'Engines':<11}ALARM: {unpublished:,.0f} serve requests and publish no cache events; "
            "kvledger doctor says why"
        )
    if figures.lost:
        lost = ", ".join(f"{reason.replace('_', ' ')} {value:,.0f}" for reason, value in figures.lost.items())
        lines.append(f"{'Given up':<11}{lost}")
    return lines


def _canary(canary: dict[str, float]) -> str:
    if not canary.get("running"):
        return "starting, or off: /v1/watermarks says which and why"
    measured, reported = (
        canary.get(f"{name}_staleness_seconds", math.nan) for name in ("measured", "reported")
    )
    violations = canary.get("violations_total", 0.0)
    alarm = f"; ALARM: {violations:,.0f} times fresher than true" if violations else ""
    return f"true staleness {_ms(measured)} at most, reported {_ms(reported)}{alarm}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1_000:,.0f} ms" if math.isfinite(seconds) else "unknown"
