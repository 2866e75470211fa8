"""What a lookup asks and answers, shared by server and client: fields, headers, bodies.

JSON both ways; a request may also be a binary body of u32 little-endian tokens with the rest in the query
string. Unknown fields are refused, so that a misspelt bound is never taken for none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from events.ids import Basis, ExcludeReason, QuotaLevel, Tier, Unit
from events.model.field import ID_BYTES, Name
from events.model.profile import LayoutProfile
from events.model.signal import Load

BINARY_TYPE = "application/octet-stream"
JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"

AS_OF_HEADER = "KV-As-Of"
STALENESS_HEADER = "KV-Staleness-Ms"
BOUND_HEADER = "KV-Bound-Ms"
CONSISTENCY_HEADER = "KV-Consistency-Effective"
COVERAGE_HEADER = "KV-Coverage"
TOKEN_HEADER = "KV-Token"  # noqa: S105 - the name of a header


class OnStale(StrEnum):
    """What to do with workers out of bound: leave them out, refuse, or mark them."""

    DROP = "drop"
    FAIL = "fail"
    INCLUDE = "include"


class IdentityWanted(StrEnum):
    """`any`: matches under an unverified profile are marked; `verified`: they are left out."""

    ANY = "any"
    VERIFIED = "verified"


class Model(BaseModel):
    """Frozen, strict, closed to unknown fields and to NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _ids(value: Any) -> Any:
    """Ids as hex strings, made bytes at once; the message says which length was wanted."""
    if not isinstance(value, (list, tuple)):
        raise ValueError("block_ids is an array")
    wrong = f"every block id is {2 * ID_BYTES} hex characters ({ID_BYTES} bytes)"
    try:
        joined = "".join(value)
    except TypeError as error:
        if all(isinstance(block, bytes) and len(block) == ID_BYTES for block in value):
            return tuple(value)
        raise ValueError(wrong) from error
    if value and {*map(len, value)} != {2 * ID_BYTES}:
        raise ValueError(wrong)
    try:
        raw = bytes.fromhex(joined)
    except ValueError as error:
        raise ValueError("a block id is not hex") from error
    if len(raw) != ID_BYTES * len(value):
        raise ValueError("a block id is not hex")
    return tuple([raw[at : at + ID_BYTES] for at in range(0, len(raw), ID_BYTES)])


BlockIds = Annotated[tuple[bytes, ...], BeforeValidator(_ids, json_schema_input_type=list[str])]
TokenId = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": (1 << 32) - 1})]
"""A u32; its range is checked when the tokens are packed, all at once."""
Milliseconds = Annotated[float, Field(ge=0)]
Label = Annotated[str, StringConstraints(min_length=1, max_length=2_000)]


def _coverage(value: int | float) -> int | float:
    if isinstance(value, float) and value > 1:
        raise ValueError("a share of streams lies between 0 and 1; a whole number counts streams")
    return value


MinCoverage = Annotated[
    Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0)], AfterValidator(_coverage)
]


class LookupRequest(Model):
    """One prefix in one domain. Exactly one of `block_ids` and `token_ids`; exactly one of
    `max_staleness_ms` and `consistency`.

    `profile` is a profile's id (64 hex characters), or a model's name that stands, with `adapter`, for every
    profile declared under it. `min_coverage`: a whole number counts streams, a float is a share of those
    eligible. `basis`: the weakest word to go by. `candidates`: each gets an answer, and nobody else.
    """

    profile: Label
    adapter: Label | None = None
    domain: Name | None = None
    block_ids: BlockIds | None = None
    token_ids: list[TokenId] | None = None
    max_staleness_ms: Milliseconds | None = None
    consistency: Literal["any"] | None = None
    candidates: Annotated[list[Name], Field(max_length=10_000)] | None = None
    min_token: Annotated[str, StringConstraints(max_length=20_000)] | None = None
    on_stale: OnStale = OnStale.DROP
    min_coverage: MinCoverage | None = None
    wait_ms: Milliseconds = 0
    basis: Basis = Basis.PUBLISHED
    identity: IdentityWanted = IdentityWanted.ANY
    limit: Annotated[int, Field(ge=1)] | None = None
    requester_layout: LayoutProfile | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> LookupRequest:
        if (self.block_ids is None) == (self.token_ids is None):
            raise ValueError("give one of block_ids and token_ids")
        check_bound(self.max_staleness_ms, self.consistency)
        return self


class BinaryQuery(Model):
    """The query string beside a binary body: all of `LookupRequest` but the tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)

    profile: Label
    adapter: Label | None = None
    domain: Name | None = None
    max_staleness_ms: Milliseconds | None = None
    consistency: Literal["any"] | None = None
    candidates: Annotated[list[Name], Field(max_length=10_000)] | None = None
    min_token: Annotated[str, StringConstraints(max_length=20_000)] | None = None
    on_stale: OnStale = OnStale.DROP
    min_coverage: MinCoverage | None = None
    wait_ms: Milliseconds = 0
    basis: Basis = Basis.PUBLISHED
    identity: IdentityWanted = IdentityWanted.ANY
    limit: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _bounded(self) -> BinaryQuery:
        check_bound(self.max_staleness_ms, self.consistency)
        return self


def check_bound(max_staleness_ms: float | None, consistency: str | None) -> None:
    """Raises ValueError unless the caller said how old the answer may be, in exactly one way."""
    if max_staleness_ms is None and consistency is None:
        raise ValueError('a bound is required: max_staleness_ms, or consistency: "any"')
    if max_staleness_ms is not None and consistency is not None:
        raise ValueError('max_staleness_ms and consistency: "any" exclude each other')


@dataclass(slots=True)
class TierTokens:
    """Leading tokens usable with the tiers up to and with each, cumulative: gpu <= cpu <= disk <= remote.

    Not frozen, like the other parts of a match: freezing them costs more than finding the match.
    """

    gpu: int
    cpu: int
    disk: int
    remote: int


@dataclass(slots=True)
class StreamPosition:
    """How far this replica has applied the stream: its epoch and sequence, and the next offset to read of
    its partition of `kv.events`."""

    partition: int
    offset: int
    epoch: str
    epoch_no: int
    next_seq: int


@dataclass(slots=True)
class Match:
    """What one worker's rank can use of the prefix. `staleness_ms` None: unknown, older than any bound.
    `inventory` partial: records of the engine were lost for good or never heard, so it may hold more than this;
    the lengths are the least that it holds."""

    worker: str
    endpoint: str | None
    dp_rank: int
    tiers: TierTokens
    matched_blocks: int
    matched_tokens: int
    staleness_ms: float | None
    basis: Basis
    identity: Literal["verified", "unverified"]
    position: StreamPosition
    within_bound: bool
    inventory: Literal["known", "partial"] = "known"
    load: Load | None = None
    transfer_compatible: bool | None = None


@dataclass(frozen=True, slots=True)
class Excluded:
    """A worker's rank that was not scored, and why. `dp_rank` None: a candidate that nobody registered."""

    worker: str
    dp_rank: int | None
    reason: ExcludeReason
    staleness_ms: float | None


@dataclass(frozen=True, slots=True)
class Coverage:
    """Streams that the answer speaks for, of those registered and neither superseded, fenced nor closed."""

    included: int
    eligible: int

    def __str__(self) -> str:
        return f"{self.included}/{self.eligible}"


@dataclass(frozen=True, slots=True)
class QuotaStanding:
    """How the domain's owner stands against one of its limits."""

    tier: Tier
    unit: Unit
    level: QuotaLevel


class Answer(BaseModel):
    """What a client reads ignores fields that it doesn't know, so that a service may say more later.

    `complete`: every eligible stream is scored, in bound and knows its whole inventory, no match ends at a copy
    that may be gone, and none was cut off by `limit`; only then does absence from `matches` mean that nothing is
    there. `staleness_ms` is the worst over eligible streams if complete, else over those scored, and over the
    owners of the shared stores that these reach."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    matches: list[Match]
    excluded: list[Excluded]
    complete: bool
    coverage: Coverage
    as_of: str | None
    staleness_ms: float | None
    token: str
    quota_state: list[QuotaStanding] | None = None


def answer_headers(answer: Answer, bound_ms: float | None) -> dict[str, str]:
    """The answer's headers, so that a proxy or a log can read them without the body. The effective
    consistency is `bounded` only if the answer speaks for somebody, and all that it rests on is within the
    bound."""
    headers = {
        CONSISTENCY_HEADER: "bounded" if _bounded(answer, bound_ms) else "any",
        COVERAGE_HEADER: str(answer.coverage),
        TOKEN_HEADER: answer.token,
        "Cache-Control": "no-store",
    }
    if answer.as_of is not None:
        headers[AS_OF_HEADER] = answer.as_of
    if answer.staleness_ms is not None:
        headers[STALENESS_HEADER] = f"{answer.staleness_ms:.3f}"
    if bound_ms is not None:
        headers[BOUND_HEADER] = f"{bound_ms:g}"
    return headers


def _bounded(answer: Answer, bound_ms: float | None) -> bool:
    if bound_ms is None or answer.coverage.included == 0:
        return False
    return answer.staleness_ms is not None and answer.staleness_ms <= bound_ms


def binary_query(request: Mapping[str, Any]) -> dict[str, str]:
    """A request's fields as a query string's, without tokens and empty ones; lists are joined by commas."""
    return {
        name: ",".join(value) if isinstance(value, (list, tuple)) else str(value)
        for name, value in request.items()
        if value is not None and name not in ("token_ids", "block_ids", "requester_layout")
    }
