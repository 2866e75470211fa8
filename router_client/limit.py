"""What bounds a view, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field

MILLISECOND_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class ViewLimits:
    """`max_copies`: copies held for all streams. `max_streams`: registered streams followed;
    `max_strangers`: streams followed that nobody registered (yet), the oldest is forgotten first.
    `max_blocks`: blocks of one question. `max_chains`: different (profile, block size) that one question by
    tokens is hashed for. `silent_after_ns`: without a pulse for so long a stale stream is called silent.
    `beacon_interval_ms` and `pulse_interval_ms` are the configured rates, parts of the floor."""

    max_copies: int = 20_000_000
    max_streams: int = 100_000
    max_strangers: int = 256
    max_blocks: int = 32_768
    max_chains: int = 8
    max_marks: int = 200_000
    max_former: int = 10_000
    max_profiles_seen: int = 10_000
    max_quotas: int = 100_000
    max_checksums: int = 1_024
    silent_after_ns: int = 2_000 * MILLISECOND_NS
    beacon_interval_ms: float = 100.0
    pulse_interval_ms: float = 200.0
    max_transit_ms: float = 100.0


@dataclass(slots=True)
class Counters:
    """What the feed met, for metrics."""

    records: int = 0
    block_operations: int = 0
    undecodable: int = 0
    faults: int = 0
    pulses: int = 0
    bad_pulses: int = 0
    bad_signals: int = 0
    shed: int = 0
    refused_streams: int = 0
    forgotten_strangers: int = 0
    forgotten: dict[str, int] = field(default_factory=dict)
    """By kind, what was given up at a bound besides streams."""

    def forget(self, kind: str, count: int = 1) -> None:
        """Counts what a bound cost."""
        self.forgotten[kind] = self.forgotten.get(kind, 0) + count
