"""A circuit breaker: after failures in a row nobody is asked for a while, then one caller tries. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CircuitBreaker:
    """Open after `threshold` failures in a row, for `pause_s`, doubled at each failed trial up to
    `max_pause_s`. Instants are injected, in seconds of any monotonic clock."""

    threshold: int = 5
    pause_s: float = 0.5
    max_pause_s: float = 15.0
    failures: int = 0
    _open_until: float = 0.0
    _trials: int = 0
    _trying: bool = False

    def allows(self, now_s: float) -> bool:
        """Whether this call may go out; of many after a pause, one."""
        if self.failures < self.threshold:
            return True
        if now_s < self._open_until or self._trying:
            return False
        self._trying = True
        return True

    def succeeded(self) -> None:
        """Somebody answered, whatever the answer."""
        self.failures = self._trials = 0
        self._trying = False

    def failed(self, now_s: float) -> None:
        """Nobody answered, or only to say that they can't."""
        self.failures += 1
        self._trying = False
        if self.failures >= self.threshold:
            self._open_until = now_s + min(self.pause_s * 2**self._trials, self.max_pause_s)
            self._trials = min(self._trials + 1, 16)

    def abandoned(self) -> None:
        """A call ended without telling anything (it was cancelled)."""
        self._trying = False
