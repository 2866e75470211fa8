"""A lookup as the view takes it: the wire's request with tokens packed, the domain settled, the token read."""

from __future__ import annotations

from dataclasses import dataclass

from events.errors import IdentityError
from events.identity import pack_tokens
from events.ids import Basis
from events.model.profile import LayoutProfile
from events.token import Token, TokenError
from router_client.problem import Problem, ProblemKind, problem
from router_client.wire import BinaryQuery, IdentityWanted, LookupRequest, OnStale


@dataclass(frozen=True, slots=True)
class Query:
    """`bound_ms` None: consistency `any`. Exactly one of `ids` and `tokens` (u32 little endian) is set."""

    domain: str
    profile: str
    adapter: str | None
    ids: tuple[bytes, ...] | None
    tokens: bytes | None
    bound_ms: float | None
    on_stale: OnStale = OnStale.DROP
    min_coverage: int | float | None = None
    candidates: tuple[str, ...] | None = None
    basis: Basis = Basis.PUBLISHED
    identity: IdentityWanted = IdentityWanted.ANY
    limit: int | None = None
    layout: LayoutProfile | None = None
    min_token: Token | None = None
    wait_ms: float = 0.0
    show_quota: bool = True


def make_query(
    request: LookupRequest | BinaryQuery, domain: str, *, tokens: bytes | None = None, show_quota: bool = True
) -> Query | Problem:
    """The query of a request in a domain that the caller may read. `tokens` is a binary body.

    A problem where the token isn't one, a token id is no u32, or the binary body no whole number of them.
    """
    ids: tuple[bytes, ...] | None = None
    layout: LayoutProfile | None = None
    if isinstance(request, LookupRequest):
        ids, layout = request.block_ids, request.requester_layout
        if request.token_ids is not None:
            try:
                tokens = pack_tokens(request.token_ids)
            except IdentityError as error:
                return problem(ProblemKind.MALFORMED, str(error), field="token_ids")
    elif tokens is None or len(tokens) % 4:
        return problem(ProblemKind.MALFORMED, "a binary body is token ids as u32 little endian")
    token: Token | None = None
    if request.min_token is not None:
        try:
            token = Token.decode(request.min_token)
        except TokenError:
            return problem(ProblemKind.MALFORMED, "min_token is no token", field="min_token")
    return Query(
        domain=domain,
        profile=request.profile,
        adapter=request.adapter,
        ids=ids,
        tokens=tokens,
        bound_ms=request.max_staleness_ms,
        on_stale=request.on_stale,
        min_coverage=request.min_coverage,
        candidates=tuple(request.candidates) if request.candidates is not None else None,
        basis=request.basis,
        identity=request.identity,
        limit=request.limit,
        layout=layout,
        min_token=token,
        wait_ms=request.wait_ms,
        show_quota=show_quota,
    )
