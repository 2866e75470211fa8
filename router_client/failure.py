"""What a lookup can end in besides an answer.

RouterError
├── StaleError             no answer is fresh enough: route without a hint, or ask again with a wider bound
├── BoundTooTightError     the bound lies below what is possible: use at least `floor_ms`
├── UnavailableError       the service can't be reached or can't answer yet: route without a hint
├── TokenAheadError        this replica hasn't seen the caller's own write yet: ask again, or another replica
├── TokenRefusedError      the token is of another log, or of its future: drop it
├── UnknownProfileError    nobody serves this profile here: route without a hint
├── DeniedError            the token or the domain isn't right: a matter for configuration
├── TooLargeError          the prefix is above `limit`: send fewer blocks
└── RequestError           the request is wrong: a fault of the caller's program
"""

from __future__ import annotations

from events.errors import KvledgerError
from router_client.problem import Problem, ProblemKind
from router_client.wire import Coverage


class RouterError(KvledgerError):
    """A lookup without an answer. `problem` is the service's document, None where it sent none."""

    def __init__(self, message: str, problem: Problem | None = None) -> None:
        super().__init__(message)
        self.problem = problem


class StaleError(RouterError):
    """No answer is fresh enough for the bound. Route this request without a hint (round robin, a hash ring):
    a stale hint must never be taken for a fact. `best_achievable_ms`, if known, would have been met."""

    @property
    def best_achievable_ms(self) -> float | None:
        return self.problem.best_achievable_ms if self.problem else None

    @property
    def coverage(self) -> Coverage | None:
        return self.problem.coverage if self.problem else None


class BoundTooTightError(RouterError):
    """No answer can ever be that fresh: ask with at least `floor_ms`."""

    @property
    def floor_ms(self) -> float:
        return (self.problem.floor_ms if self.problem else None) or 0.0


class UnavailableError(RouterError):
    """The service can't be reached in time, or has no index yet. Route without a hint; the client itself
    keeps from asking again too soon."""


class TokenAheadError(RouterError):
    """The replica hasn't reached `min_token`. Ask again with a longer wait, or another replica."""


class TokenRefusedError(RouterError):
    """`min_token` is of another log or lies beyond this log's end. Drop it."""


class UnknownProfileError(RouterError):
    """Nobody has declared the profile in the domain. Route without a hint."""


class DeniedError(RouterError):
    """The bearer token isn't known, or the domain isn't the caller's (or isn't there)."""


class TooLargeError(RouterError):
    """The prefix or body is above `limit` (blocks or bytes): send the leading part only."""

    @property
    def limit(self) -> int | None:
        return self.problem.limit if self.problem else None


class RequestError(RouterError):
    """The request is malformed: mend the caller."""


_BY_KIND: dict[ProblemKind, type[RouterError]] = {
    ProblemKind.STALENESS_BOUND_UNMET: StaleError,
    ProblemKind.BOUND_BELOW_FLOOR: BoundTooTightError,
    ProblemKind.TOKEN_AHEAD: TokenAheadError,
    ProblemKind.TOKEN_FOREIGN: TokenRefusedError,
    ProblemKind.TOKEN_FUTURE: TokenRefusedError,
    ProblemKind.PROFILE_UNKNOWN: UnknownProfileError,
    ProblemKind.UNAUTHENTICATED: DeniedError,
    ProblemKind.FORBIDDEN: DeniedError,
    ProblemKind.TOO_LARGE: TooLargeError,
    ProblemKind.TOO_MANY_BLOCKS: TooLargeError,
}


def error_of(problem: Problem, *, url: str = "", profile: str = "") -> RouterError:
    """The typed error of a problem document; its message names what was asked of whom and what to do next."""
    try:
        kind: ProblemKind | None = problem.kind
    except ValueError:
        kind = None
    found = _BY_KIND.get(kind) if kind is not None else None
    if found is None:
        found = UnavailableError if problem.status >= 500 else RequestError
    return found(_message(found, problem, url, profile), problem)


def _message(found: type[RouterError], problem: Problem, url: str, profile: str) -> str:
    said = problem.detail or problem.title
    if problem.field:
        said = f"{problem.field}: {said}"
    if found is UnavailableError:
        at = url or "the service"
        return (
            f"{at} can't answer (status {problem.status}): {said}; route without a hint and ask again later"
        )
    if found is StaleError:
        best_ms, bound_ms = problem.best_achievable_ms, problem.bound_ms
        known = [
            f"asked for {bound_ms:g} ms" if bound_ms is not None else "",
            f"best achievable now {best_ms:g} ms" if best_ms is not None else "no bound can be met now",
            f"never below {problem.floor_ms:g} ms" if problem.floor_ms is not None else "",
            f"coverage {problem.coverage}" if problem.coverage is not None else "",
        ]
        wider = f", or ask with at least {best_ms:g} ms" if best_ms is not None else ""
        return f"{said} ({', '.join(part for part in known if part)}); route without a hint{wider}"
    if found is BoundTooTightError and problem.floor_ms is not None:
        return f"{said}; ask with a bound of at least {problem.floor_ms:g} ms"
    if found is UnknownProfileError and profile:
        return f"profile {profile!r} is not known at {url or 'the service'}: {said}"
    if found is TooLargeError and problem.limit is not None:
        return f"{said}; at most {problem.limit} are taken: send the leading part only"
    return said
