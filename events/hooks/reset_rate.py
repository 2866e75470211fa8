"""How many resets a tenant may cause in one engine: every one costs all tenants their cache. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set

WINDOW_S = 3_600.0


class ResetRate:
    """Counts, by tenant, the resets of the last hour that were made for orders of it. An order of nobody (an
    operator's, over all tenants) is never limited."""

    def __init__(self, per_hour: int) -> None:
        self._per_hour = per_hour
        self._made: dict[str, deque[float]] = {}

    def due_in_s(self, tenants: Iterable[str], now_s: float) -> float:
        """How long an order of these must wait: for the first of them that may cause a reset again."""
        return min((self._due_in_s(tenant, now_s) for tenant in tenants), default=0.0)

    def charge(self, tenants: Set[str], now_s: float) -> None:
        """A reset was made for orders of these."""
        for tenant in tenants:
            self._made.setdefault(tenant, deque()).append(now_s)

    def _due_in_s(self, tenant: str, now_s: float) -> float:
        made = self._made.get(tenant)
        while made and now_s - made[0] >= WINDOW_S:
            made.popleft()
        if not made:
            self._made.pop(tenant, None)
            return 0.0
        return 0.0 if len(made) < self._per_hour else made[-self._per_hour] + WINDOW_S - now_s
