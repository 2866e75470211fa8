"""`POST /query` in the shape of Mooncake's RFC #1403, for routers that ask another index in that form today.

The same lookup, with the same bound and refusals; what the form lacks stands beside it. Prefixes are asked for by
their tokens: the unkeyed 64-bit hashes of `/query_by_hash` name no block here.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from events.keyring import KeyRing
from indexer.service.body import fail
from router_client.problem import ProblemKind
from router_client.wire import Answer, LookupRequest, Milliseconds, TokenId

DEFAULT_BOUND_MS = 1_000.0
NO_HASHES = (
    "hashes of other indexes are unkeyed and 64 bits wide: they name no block here and would let anybody who "
    "knows a prompt ask for it. Ask /query with token_ids, or /v1/lookup with kvledger's block ids"
)


class FormQuery(BaseModel):
    """The form's fields; others are ignored, as other indexes do. `domain`, or a `cache_salt` of
    `kvledger domain salt`, says whose prefix it is. Without `max_staleness_ms` and `consistency` the bound is
    one second."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)

    token_ids: list[TokenId]
    model_name: str
    lora_name: str | None = None
    cache_salt: str | None = None
    routing_group: str | None = None
    tenant_id: str | None = None
    domain: str | None = None
    max_staleness_ms: Milliseconds | None = None
    consistency: Literal["any"] | None = None
    min_token: str | None = None


def lookup_of(form: FormQuery, keyring: KeyRing) -> LookupRequest:
    """The lookup that the form means. Raises ProblemError for what kvledger can't honour, rather than answer
    for something else; ValidationError."""
    if form.routing_group is not None:
        raise fail(ProblemKind.MALFORMED, "there are no routing groups here", field="routing_group")
    domain = form.domain
    if form.cache_salt is not None:
        salted = keyring.domain_of_salt(form.cache_salt)
        if salted is None or domain not in (None, salted):
            raise fail(ProblemKind.FORBIDDEN, "no such domain for this caller", field="cache_salt")
        domain = salted
    bound_ms = form.max_staleness_ms
    if bound_ms is None and form.consistency is None:
        bound_ms = DEFAULT_BOUND_MS
    return LookupRequest(
        profile=form.model_name,
        adapter=form.lora_name,
        domain=domain,
        token_ids=form.token_ids,
        max_staleness_ms=bound_ms,
        consistency=form.consistency,
        min_token=form.min_token,
    )


def form_of(answer: Answer) -> dict[str, Any]:
    """The answer in the form: tokens by instance and rank, cumulative by tier (`disk` with shared stores), each
    the best rank's. Beside it what the form has no place for: who was left out and why, and how old it is."""
    scores: dict[str, dict[str, int]] = {}
    instances: dict[str, dict[str, Any]] = {}
    for match in answer.matches:
        rank, tiers = str(match.dp_rank), match.tiers
        scores.setdefault(match.worker, {})[rank] = match.matched_tokens
        known = instances.setdefault(
            match.worker, {"longest_matched": 0, "gpu": 0, "dp": {}, "cpu": 0, "disk": 0}
        )
        known["dp"][rank] = tiers.gpu
        for name, tokens in (
            ("longest_matched", match.matched_tokens),
            ("gpu", tiers.gpu),
            ("cpu", tiers.cpu),
            ("disk", tiers.remote),
        ):
            known[name] = max(known[name], tokens)
    beside = answer.model_dump(
        mode="json", include={"excluded", "complete", "coverage", "as_of", "staleness_ms", "token"}
    )
    return {"scores": scores, "frequencies": [], "instances": instances, **beside}
