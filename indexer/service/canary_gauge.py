"""What the view says of the canary's stream against when that stream was changed."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable

from events.fold.staleness import staleness_ns
from events.ids import Basis, StreamKey
from router_client.stream_view import StreamView
from router_client.view import LocalView

LOG = logging.getLogger(__name__)
WINDOW_NS = 10_000_000_000
"""The largest figure is remembered for so long."""


class CanaryGauge:
    """Compares what the view says of the canary's stream with when it was changed. Pure but for the clock."""

    def __init__(self, view: LocalView, *, monotonic_ns: Callable[[], int]) -> None:
        self.stream: StreamKey | None = None
        self.violations = 0
        self.changes = 0
        self.reported_ns: int | None = None
        self._view = view
        self._monotonic_ns = monotonic_ns
        self._changed_ns: OrderedDict[int, int] = OrderedDict()
        self._accused = -1
        self._seen: deque[tuple[int, int]] = deque()

    def begin(self, stream: StreamKey) -> None:
        """Another epoch: what was measured of the last one stays in the figures."""
        self.stream, self._accused = stream, -1
        self._changed_ns.clear()

    def changing(self, seq: int, now_ns: int) -> None:
        """The stream's content changes now; a reader that hasn't applied `seq` lacks it."""
        self.changes += 1
        self._changed_ns[seq] = now_ns

    def sample(self) -> None:
        """Looks at the view as a lookup would at this instant."""
        if self.stream is None:
            return
        now_ns, view = self._monotonic_ns(), self._view.streams.get(self.stream)
        measured_ns = 0
        while self._changed_ns:
            seq, at_ns = next(iter(self._changed_ns.items()))
            measured_ns = now_ns - at_ns
            if view is None or view.state.next_seq <= seq:
                break
            del self._changed_ns[seq]
            self._note(now_ns, measured_ns)
            measured_ns = 0
        self._note(now_ns, measured_ns)
        self.reported_ns = self._reported(view, now_ns)
        if self._changed_ns and self.reported_ns is not None and self.reported_ns < measured_ns:
            seq = next(iter(self._changed_ns))
            if seq != self._accused:
                self._accused = seq
                self.violations += 1
                LOG.error(
                    "the view says that it is %d us old and lacks what is %d us old",
                    self.reported_ns // 1_000,
                    measured_ns // 1_000,
                    extra={"action": "canary_violation"},
                )

    def measured_ns(self) -> int | None:
        """The largest age of anything that the view lacked, over about ten seconds; None: never measured."""
        self._forget(self._monotonic_ns())
        return max((value for _, value in self._seen), default=None)

    def _reported(self, view: StreamView | None, now_ns: int) -> int | None:
        if view is None:
            return None
        as_of, _ = view.fresh(Basis.PUBLISHED)
        return staleness_ns(now_ns, as_of, self._view.control_current_ns())

    def _note(self, now_ns: int, value: int) -> None:
        # Only what no later sample is larger than can ever be the window's largest.
        while self._seen and self._seen[-1][1] <= value:
            self._seen.pop()
        self._seen.append((now_ns, value))
        self._forget(now_ns)

    def _forget(self, now_ns: int) -> None:
        while self._seen and now_ns - self._seen[0][0] > WINDOW_NS:
            self._seen.popleft()
