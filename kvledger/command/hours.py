"""Hours as people give them, in the seconds that records hold."""

from __future__ import annotations

import math

from kvledger.failure import CommandError, ExitCode

MAX_HOURS = 24 * 366 * 1_000


def seconds(hours: float | None, option: str) -> int | None:
    """Whole seconds, or None. Raises CommandError for what is no time that anybody means."""
    if hours is None:
        return None
    if not math.isfinite(hours) or not 0 <= hours <= MAX_HOURS:
        raise CommandError(
            f"{option} takes hours from 0 to {MAX_HOURS} (a thousand years)", exit_code=ExitCode.USAGE
        )
    return round(hours * 3600)
