"""`POST /v1/lookup` and `/v1/lookup/batch`: the hot path, plain ASGI apart from the control plane."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Annotated
from urllib.parse import parse_qsl

from pydantic import Field, ValidationError

from indexer.service.access import AccessBook
from indexer.service.body import (
    BodyReader,
    ProblemError,
    Receive,
    Scope,
    Send,
    fail,
    header,
    media_type,
    send_document,
    send_problem,
    unreadable,
)
from indexer.service.config import ServiceConfig
from indexer.service.credential import CallerRole, Principal
from indexer.service.feed import ViewFeed
from indexer.service.metric import Metrics
from router_client.answer import answer
from router_client.problem import Problem, ProblemKind, problem
from router_client.query import Query, make_query
from router_client.view import LocalView
from router_client.wire import (
    BINARY_TYPE,
    JSON_TYPE,
    Answer,
    BinaryQuery,
    LookupRequest,
    Model,
    answer_headers,
)

LISTS = frozenset({"candidates"})
NUMBERS = frozenset({"min_coverage"})
ENDS_TIMEOUT_S = 1.0
JITTER = 0.5
MAX_FIELDS = 64


class BatchRequest(Model):
    """Several lookups at once; each has its own answer or problem, in order."""

    lookups: Annotated[list[LookupRequest], Field(min_length=1)]


class LookupEndpoint:
    """Answers from the view alone. It waits only where the caller asked for it (`wait_ms`)."""

    def __init__(
        self,
        config: ServiceConfig,
        view: LocalView,
        feed: ViewFeed,
        metrics: Metrics,
        bodies: BodyReader,
        access: AccessBook,
        *,
        monotonic_ns: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._view = view
        self._feed = feed
        self._metrics = metrics
        self._bodies = bodies
        self._access = access
        self._monotonic_ns = monotonic_ns
        self._wall_ms = wall_ms

    async def lookup(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One lookup. Raises ProblemError for what isn't an answer of the view."""
        started_ns = self._monotonic_ns()
        principal = self.caller(scope)
        body = await self._body(scope, receive)
        query = self._query(scope, body, principal)
        found = await self._answer(query, started_ns)
        self._metrics.lookup(found, (self._monotonic_ns() - started_ns) / 1e9)
        self.note(principal, query, found)
        if isinstance(found, Problem):
            await send_problem(send, found)
            return
        await send_document(
            send, 200, found.model_dump_json().encode(), headers=answer_headers(found, query.bound_ms)
        )

    async def batch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Several lookups in one request."""
        principal = self.caller(scope)
        if media_type(scope) != JSON_TYPE:
            raise fail(ProblemKind.MEDIA_TYPE, f"send {JSON_TYPE}")
        body = await self._bodies.read(scope, receive, self._config.max_body_bytes)
        try:
            request = BatchRequest.model_validate_json(body)
        except ValidationError as error:
            raise ProblemError(unreadable(error)) from error
        if len(request.lookups) > self._config.max_batch:
            raise fail(ProblemKind.TOO_LARGE, f"{len(request.lookups)} lookups", limit=self._config.max_batch)
        asked_ns = self._monotonic_ns()
        parts: list[bytes] = []
        for lookup in request.lookups:
            query = self.settle(lookup, principal, None)
            found = query if isinstance(query, Problem) else await self._answer(query, asked_ns)
            self._metrics.lookup(found, None)
            if not isinstance(query, Problem):
                self.note(principal, query, found)
            parts.append(found.model_dump_json(exclude_none=isinstance(found, Problem)).encode())
        document = b'{"answers":[' + b",".join(parts) + b"]}"
        await send_document(send, 200, document, headers={"Cache-Control": "no-store"})

    async def ask(self, request: LookupRequest, principal: Principal) -> Answer:
        """One lookup for another form of asking. Raises ProblemError."""
        started_ns = self._monotonic_ns()
        query = self.settle(request, principal, None)
        if isinstance(query, Problem):
            raise ProblemError(query)
        found = await self._answer(query, started_ns)
        self.note(principal, query, found)
        if isinstance(found, Problem):
            raise ProblemError(found)
        self._metrics.lookup(found, (self._monotonic_ns() - started_ns) / 1e9)
        return found

    def note(self, principal: Principal, query: Query, found: object) -> None:
        """Keeps for the access log that the caller has asked about the domain, whatever the answer."""
        matches = found.matches if isinstance(found, Answer) else ()
        best = max((match.matched_blocks for match in matches), default=0)
        self._access.note(principal.name, query.domain, best)

    def caller(self, scope: Scope) -> Principal:
        """Who asks. Raises ProblemError 401."""
        principal = self._config.credentials.identify(header(scope, b"authorization"))
        if principal is None:
            raise fail(ProblemKind.UNAUTHENTICATED, "send a known bearer token")
        return principal

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        if media_type(scope) not in (JSON_TYPE, BINARY_TYPE):
            raise fail(ProblemKind.MEDIA_TYPE, f"send {JSON_TYPE} or {BINARY_TYPE}")
        return await self._bodies.read(scope, receive, self._config.max_body_bytes)

    def _query(self, scope: Scope, body: bytes, principal: Principal) -> Query:
        try:
            if media_type(scope) == BINARY_TYPE:
                request: LookupRequest | BinaryQuery = _binary_query(scope["query_string"])
                query = self.settle(request, principal, body)
            else:
                request = LookupRequest.model_validate_json(body)
                query = self.settle(request, principal, None)
        except ValidationError as error:
            raise ProblemError(unreadable(error)) from error
        if isinstance(query, Problem):
            raise ProblemError(query)
        return query

    def settle(
        self, request: LookupRequest | BinaryQuery, principal: Principal, tokens: bytes | None
    ) -> Query | Problem:
        """Names the domain. One that is missing and one that isn't the caller's look alike."""
        if principal.role is CallerRole.AUDITOR:
            return problem(ProblemKind.FORBIDDEN, "an auditor makes no lookups")
        domains = self._view.registry.domains
        name = request.domain
        if name is None:
            name = principal.default_domain(domains)
            if name is None:
                if not self._feed.state.control_read:
                    return problem(
                        ProblemKind.INDEX_UNAVAILABLE, "kv.control is still being read", retry_after_ms=500
                    )
                return problem(ProblemKind.MALFORMED, "name a domain", field="domain")
        domain = domains.get(name)
        if domain is None or not principal.may_read(domain) or self._view.keyring.get(name) is None:
            if not self._feed.state.control_read:
                return problem(
                    ProblemKind.INDEX_UNAVAILABLE, "kv.control is still being read", retry_after_ms=500
                )
            return problem(ProblemKind.FORBIDDEN, "no such domain for this caller", field="domain")
        show = principal.role is not CallerRole.TENANT or principal.tenant == domain.tenant
        return make_query(request, name, tokens=tokens, show_quota=show)

    async def _answer(self, query: Query, asked_ns: int) -> Answer | Problem:
        """`asked_ns`: when the request came; `wait_ms` counts from there, so that a batch waits once."""
        found = answer(self._view, query, self._monotonic_ns(), self._wall_ms())
        if isinstance(found, Problem) and found.kind is ProblemKind.TOKEN_AHEAD:
            found = await self._wait_for_token(query, found, asked_ns)
        if isinstance(found, Problem) and found.retry_after_ms is not None:
            spread = 1 + JITTER * random.random()
            found = found.model_copy(update={"retry_after_ms": round(found.retry_after_ms * spread)})
        return found

    async def _wait_for_token(self, query: Query, ahead: Problem, asked_ns: int) -> Answer | Problem:
        """Waits, capped, until the view has reached the token; a token that the log itself has not reached
        is refused for good."""
        token = query.min_token
        if token is None:
            return ahead
        until_ns = asked_ns + round(min(query.wait_ms, self._config.max_wait_ms) * 1e6)
        while not self._view.reached(token):
            left_s = (until_ns - self._monotonic_ns()) / 1e9
            if left_s <= 0:
                break
            await self._feed.wait_moved(left_s)
        if self._view.reached(token):
            return answer(self._view, query, self._monotonic_ns(), self._wall_ms())
        if await self._feed.beyond_log(token, asked_ns, ENDS_TIMEOUT_S):
            return problem(ProblemKind.TOKEN_FUTURE, field="min_token")
        return ahead


def _binary_query(raw: bytes) -> BinaryQuery:
    """The query string's fields. Raises ValidationError, and ProblemError where it can't be split."""
    fields: dict[str, object] = {}
    try:
        pairs = parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise fail(ProblemKind.MALFORMED, f"more than {MAX_FIELDS} fields in the query string") from error
    for name, value in pairs:
        if name in LISTS:
            fields[name] = [item for item in value.split(",") if item]
        elif name in NUMBERS:
            fields[name] = _number(value)
        else:
            fields[name] = value
    return BinaryQuery.model_validate(fields)


def _number(text: str) -> int | float | str:
    """A whole number counts streams, anything else is a share; what is neither is refused with its field."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
