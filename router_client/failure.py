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


def error_of(problem: Problem) -> RouterError:
    """The typed error of a problem document."""
    try:
        kind: ProblemKind | None = problem.kind
    except ValueError:
        kind = None
    found = _BY_KIND.get(kind) if kind is not None else None
    if found is None:
        found = UnavailableError if problem.status >= 500 else RequestError
    return found(problem.detail or problem.title, problem)
