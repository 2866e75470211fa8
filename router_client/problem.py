"""Problem documents (RFC 9457): every refusal has a stable type and what the caller needs to go on."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from events.ids import ExcludeReason
from router_client.wire import Coverage


class ProblemKind(StrEnum):
    """The last step of a problem's `type`."""

    MALFORMED = "malformed"
    BOUND_MISSING = "bound-missing"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not-found"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    PROFILE_UNKNOWN = "profile-unknown"
    TOKEN_FOREIGN = "token-foreign"  # noqa: S105 - a problem's name
    TOKEN_FUTURE = "token-future"  # noqa: S105 - a problem's name
    TOKEN_AHEAD = "token-ahead"  # noqa: S105 - a problem's name
    TOO_LARGE = "too-large"
    TOO_MANY_BLOCKS = "too-many-blocks"
    HEAD_TOO_LARGE = "head-too-large"
    TOO_SLOW = "too-slow"
    TOO_BUSY = "too-busy"
    MEDIA_TYPE = "media-type"
    CONFLICT = "conflict"
    NOT_JUDGED = "not-judged"
    BOUND_BELOW_FLOOR = "bound-below-floor"
    STALENESS_BOUND_UNMET = "staleness-bound-unmet"
    INDEX_UNAVAILABLE = "index-unavailable"
    LOG_UNAVAILABLE = "log-unavailable"
    NOT_IMPLEMENTED = "not-implemented"
    INTERNAL = "internal"


STATUS: dict[ProblemKind, int] = {
    ProblemKind.MALFORMED: 400,
    ProblemKind.BOUND_MISSING: 400,
    ProblemKind.UNAUTHENTICATED: 401,
    ProblemKind.FORBIDDEN: 403,
    ProblemKind.NOT_FOUND: 404,
    ProblemKind.METHOD_NOT_ALLOWED: 405,
    ProblemKind.PROFILE_UNKNOWN: 404,
    ProblemKind.TOKEN_FOREIGN: 409,
    ProblemKind.TOKEN_FUTURE: 409,
    ProblemKind.TOKEN_AHEAD: 503,
    ProblemKind.TOO_LARGE: 413,
    ProblemKind.TOO_MANY_BLOCKS: 413,
    ProblemKind.HEAD_TOO_LARGE: 431,
    ProblemKind.TOO_SLOW: 408,
    ProblemKind.TOO_BUSY: 503,
    ProblemKind.MEDIA_TYPE: 415,
    ProblemKind.CONFLICT: 409,
    ProblemKind.NOT_JUDGED: 409,
    ProblemKind.BOUND_BELOW_FLOOR: 422,
    ProblemKind.STALENESS_BOUND_UNMET: 503,
    ProblemKind.INDEX_UNAVAILABLE: 503,
    ProblemKind.LOG_UNAVAILABLE: 503,
    ProblemKind.NOT_IMPLEMENTED: 501,
    ProblemKind.INTERNAL: 500,
}

TITLE: dict[ProblemKind, str] = {
    ProblemKind.MALFORMED: "The request is malformed",
    ProblemKind.BOUND_MISSING: "The request names no staleness bound",
    ProblemKind.UNAUTHENTICATED: "The caller is not known",
    ProblemKind.FORBIDDEN: "The caller has no right to this",
    ProblemKind.NOT_FOUND: "There is no such thing",
    ProblemKind.METHOD_NOT_ALLOWED: "The method is not allowed here",
    ProblemKind.PROFILE_UNKNOWN: "Nobody has declared this profile in this domain",
    ProblemKind.TOKEN_FOREIGN: "The token stands for another log",
    ProblemKind.TOKEN_FUTURE: "The token lies beyond the log's end",
    ProblemKind.TOKEN_AHEAD: "This replica has not reached the token yet",
    ProblemKind.TOO_LARGE: "The body is too large",
    ProblemKind.TOO_MANY_BLOCKS: "The prefix has too many blocks",
    ProblemKind.HEAD_TOO_LARGE: "The request line and headers are too large",
    ProblemKind.TOO_SLOW: "The request did not arrive in time",
    ProblemKind.TOO_BUSY: "As many callers as are allowed are being served",
    ProblemKind.MEDIA_TYPE: "The content type is not one that is read here",
    ProblemKind.CONFLICT: "The request conflicts with what stands",
    ProblemKind.NOT_JUDGED: "There is no proof of it yet",
    ProblemKind.BOUND_BELOW_FLOOR: "No answer can be as fresh as this bound",
    ProblemKind.STALENESS_BOUND_UNMET: "No answer is fresh enough for this bound",
    ProblemKind.INDEX_UNAVAILABLE: "The index can't answer yet",
    ProblemKind.LOG_UNAVAILABLE: "The log can't be written",
    ProblemKind.NOT_IMPLEMENTED: "This is not done here",
    ProblemKind.INTERNAL: "Something went wrong here",
}


class Lagging(BaseModel):
    """One stream that kept an answer out of its bound, and where it stands here."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    worker: str
    dp_rank: int | None
    reason: ExcludeReason
    staleness_ms: float | None
    applied_seq: int | None
    """The next sequence number this replica waits for."""
    announced_seq: int | None
    """The newest that the stream's own pulse announced."""


class Problem(BaseModel):
    """`type` is a relative reference that ends in the kind. Fields beside the RFC's five are set where the
    kind has them: `floor_ms` and `bound_ms` (422, 503), `best_achievable_ms`, `coverage`, `lagging`,
    `retry_after_ms` (503), `limit` (413), `field` (400)."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    type: str
    title: str
    status: int
    detail: str = ""
    instance: str | None = None
    field: str | None = None
    limit: int | None = None
    bound_ms: float | None = None
    floor_ms: float | None = None
    best_achievable_ms: float | None = None
    coverage: Coverage | None = None
    lagging: list[Lagging] | None = Field(default=None, max_length=1_000)
    retry_after_ms: int | None = None

    @property
    def kind(self) -> ProblemKind:
        return ProblemKind(self.type.rpartition("/")[2])


MAX_LAGGING = 100
"""Lagging streams named in one problem; the coverage says how many there are."""


def problem(
    kind: ProblemKind,
    detail: str = "",
    *,
    field: str | None = None,
    limit: int | None = None,
    bound_ms: float | None = None,
    floor_ms: float | None = None,
    best_achievable_ms: float | None = None,
    coverage: Coverage | None = None,
    lagging: list[Lagging] | None = None,
    retry_after_ms: int | None = None,
) -> Problem:
    """A problem of this kind with its status and title."""
    return Problem(
        type=f"/problems/{kind.value}",
        title=TITLE[kind],
        status=STATUS[kind],
        detail=detail,
        field=field,
        limit=limit,
        bound_ms=bound_ms,
        floor_ms=floor_ms,
        best_achievable_ms=best_achievable_ms,
        coverage=coverage,
        lagging=lagging[:MAX_LAGGING] if lagging is not None else None,
        retry_after_ms=retry_after_ms,
    )
