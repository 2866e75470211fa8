"""Hours as a person gives them on a command line, as the whole seconds of a record."""

from __future__ import annotations

from kvledger.failure import CommandError, ExitCode

HOUR_S = 3_600
MOST_HOURS = 1_000_000.0


def seconds_of(option: str, hours: float | None, command: str, least_s: int = 0) -> int | None:
    """None if none are given. Raises CommandError naming the option, its bounds in hours and the command's help."""
    if hours is None:
        return None
    if not least_s / HOUR_S - 0.0005 < hours <= MOST_HOURS:
        least = f"{least_s / HOUR_S:.3f}" if least_s else "0"
        raise CommandError(
            f"{option} takes {least} to {MOST_HOURS:.0f} hours, not {hours:g}",
            advice=f"kvledger {command} --help",
            exit_code=ExitCode.USAGE,
        )
    return max(least_s, round(hours * HOUR_S))
