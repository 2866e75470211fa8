from __future__ import annotations

from events.ids import StreamKey
from indexer.silence import SilenceLimits, SilenceWatch

LIMITS = SilenceLimits(lost_after_s=10, hears_within_s=2, most_share=0.25)


def stream(number: int) -> StreamKey:
    return StreamKey(f"w{number}", 0, "e")


class Fleet:
    """Workers that pulse once a second, a watcher that ticks after them."""

    def __init__(self, count: int) -> None:
        self.all = {stream(number) for number in range(count)}
        self.watch = SilenceWatch(LIMITS)
        self.now_s = 100.0

    def run(self, seconds: int, *, silent: set[StreamKey] = frozenset(), beacons: bool = True) -> None:  # type: ignore[assignment]
        for _ in range(seconds):
            self.now_s += 1
            if beacons:
                self.watch.beacon_read_back(self.now_s)
            for key in self.all - silent:
                self.watch.pulse(0, key.worker, [key], self.now_s)
            self.watch.tick(self.all, self.now_s)


def test_silent_stream_among_others_is_lost_after_the_limit() -> None:
    fleet = Fleet(4)
    fleet.run(3)
    fleet.run(9, silent={stream(1)})
    assert fleet.watch.lost(fleet.all, 0) == []
    fleet.run(2, silent={stream(1)})
    assert fleet.watch.lost(fleet.all, 0) == [stream(1)]


def test_one_pulse_starts_the_count_again() -> None:
    fleet = Fleet(4)
    fleet.run(3)
    fleet.run(9, silent={stream(1)})
    fleet.run(1)
    fleet.run(9, silent={stream(1)})
    assert fleet.watch.lost(fleet.all, 0) == []


def test_silence_does_not_count_while_the_watcher_hears_nothing_of_its_own() -> None:
    fleet = Fleet(4)
    fleet.run(3)
    fleet.run(30, silent={stream(1)}, beacons=False)
    assert fleet.watch.lost(fleet.all, 0) == []


def test_partition_that_went_quiet_fences_nobody() -> None:
    fleet = Fleet(4)
    fleet.run(3)
    fleet.run(60, silent=fleet.all)
    assert fleet.watch.lost(fleet.all, 0) == []


def test_never_more_than_a_share_of_the_fleet() -> None:
    fleet = Fleet(12)
    fleet.run(3)
    gone = {stream(number) for number in range(6)}
    fleet.run(15, silent=gone)
    assert len(fleet.watch.lost(fleet.all, 0)) == 3
    assert len(fleet.watch.lost(fleet.all, 2)) == 1
    assert fleet.watch.lost(fleet.all, 3) == []


def test_registered_stream_that_never_pulsed_is_lost_too() -> None:
    fleet = Fleet(4)
    fleet.run(14, silent={stream(1)})
    assert fleet.watch.lost(fleet.all, 0) == [stream(1)]
