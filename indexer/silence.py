"""Which streams have been silent for so long that they count as lost. Pure: instants are injected.

Silence counts only while the watcher itself provably hears: it reads its own beacons back, and other workers'
pulses arrive in the same partition. So a broken broker, or a watcher cut off from it, fences nobody.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from events.ids import StreamKey


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """`lost_after_s` of counted silence fences; `hears_within_s` is how fresh beacon and neighbours must be;
    `most_share` of the fleet, and at least one, may be fenced for silence at a time."""

    lost_after_s: float = 60.0
    hears_within_s: float = 2.0
    most_share: float = 0.25


@dataclass(slots=True)
class SilenceWatch:
    limits: SilenceLimits
    _heard_s: dict[StreamKey, float] = field(default_factory=dict)
    _partition: dict[str, int] = field(default_factory=dict)
    _worker_heard_s: dict[tuple[int, str], float] = field(default_factory=dict)
    _silence_s: dict[StreamKey, float] = field(default_factory=dict)
    _ticked_s: float | None = None
    _beacon_s: float = float("-inf")

    def beacon_read_back(self, now_s: float) -> None:
        self._beacon_s = now_s

    def pulse(self, partition: int, worker: str, streams: Collection[StreamKey], now_s: float) -> None:
        """A pulse of `worker` arrived in a partition of `kv.pulse`."""
        self._partition[worker] = partition
        self._worker_heard_s[partition, worker] = now_s
        for stream in streams:
            self._heard_s[stream] = now_s
            self._silence_s.pop(stream, None)

    def tick(self, eligible: Collection[StreamKey], now_s: float) -> None:
        """Adds the time since the last tick to the silence of each eligible stream that it counts for."""
        before, self._ticked_s = self._ticked_s, now_s
        for stream in set(self._silence_s) - set(eligible):
            del self._silence_s[stream]
        if before is None or now_s - self._beacon_s > self.limits.hears_within_s:
            return
        for stream in eligible:
            last_s = self._heard_s.get(stream, float("-inf"))
            if last_s >= before or not self._hears_neighbours(stream.worker, now_s):
                continue
            # A watcher that slept through its ticks has not listened all that time.
            counted_s = min(now_s - before, self.limits.hears_within_s)
            self._silence_s[stream] = self._silence_s.get(stream, 0.0) + counted_s

    def _hears_neighbours(self, worker: str, now_s: float) -> bool:
        """A worker that was never heard has no partition yet: then every partition that ever had a pulse
        must be alive."""
        partition = self._partition.get(worker)
        alive = {
            place
            for (place, other), heard_s in self._worker_heard_s.items()
            if other != worker and now_s - heard_s <= self.limits.hears_within_s
        }
        if partition is not None:
            return partition in alive
        return bool(alive) and alive == {place for place, _ in self._worker_heard_s}

    def lost(self, eligible: Collection[StreamKey], fenced_for_silence: int) -> list[StreamKey]:
        """Streams to fence now, longest silent first, within the share of the fleet that may be fenced."""
        fleet = len(eligible) + fenced_for_silence
        room = max(1, int(fleet * self.limits.most_share)) - fenced_for_silence
        silent = sorted(
            (stream for stream in eligible if self._silence_s.get(stream, 0.0) >= self.limits.lost_after_s),
            key=lambda stream: (-self._silence_s[stream], stream),
        )
        return silent[: max(room, 0)]
