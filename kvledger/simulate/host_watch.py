"""Tells the truth when this process didn't get to run: lateness then is nobody's fault."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kvledger.simulate.truth import Truth

LAG_EVERY_S = 0.05
LAG_EXCUSED_S = 0.15
"""A timer that comes later than this shows that the host is overloaded, and not what runs on it at fault."""


@dataclass(slots=True)
class HostWatch:
    """`slow_s` is how long the process stood still in all."""

    truth: Truth
    slow_s: float = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            before_ns = self.truth.now_ns()
            await asyncio.sleep(LAG_EVERY_S)
            after_ns = self.truth.now_ns()
            if after_ns - before_ns > (LAG_EVERY_S + LAG_EXCUSED_S) * 1e9:
                self.slow_s += (after_ns - before_ns) / 1e9
                self.truth.was_slow(before_ns, after_ns)
