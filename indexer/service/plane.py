"""The control plane: everything but lookups, as a FastAPI application whose every refusal is a problem."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError

from events.ids import CANARY_WORKER, Role
from events.receipt import Receipt
from events.topic import EVENTS
from indexer.service.body import ProblemError, fail, unreadable
from indexer.service.canary import Canary
from indexer.service.config import ServiceConfig
from indexer.service.credential import EVERY_DOMAIN, CallerRole, Principal
from indexer.service.directive import DirectiveDesk, FenceBody, LimitBody
from indexer.service.document import usage_document, worker_document
from indexer.service.feed import ViewFeed
from indexer.service.lookup import LookupEndpoint
from indexer.service.metric import CONTENT_TYPE, Metrics
from indexer.service.openapi import describe
from indexer.service.order import OrderDesk
from indexer.service.ordering import add_order_routes
from indexer.service.query_form import NO_HASHES, FormQuery, form_of, lookup_of
from indexer.service.refusal import as_response, refuse_with_problems
from indexer.service.request import Key, key_of, read_body, told
from indexer.service.snapshot import write_snapshot
from indexer.service.subject import SubjectDesk
from indexer.service.verdict import VerdictFeed
from router_client.explain import Explanation, explain
from router_client.problem import Problem, ProblemKind, problem
from router_client.view import LocalView
from router_client.wire import JSON_TYPE, LookupRequest, answer_headers

NO_STORE = {"Cache-Control": "no-store"}


def make_plane(
    config: ServiceConfig,
    view: LocalView,
    feed: ViewFeed,
    desk: OrderDesk,
    directives: DirectiveDesk,
    metrics: Metrics,
    endpoint: LookupEndpoint,
    canary: Canary,
    subjects: SubjectDesk,
    verdicts: VerdictFeed,
    wall_ms: Callable[[], int],
) -> FastAPI:
    """Routes over one view. `docs` pages are off: they would load from elsewhere."""
    app = FastAPI(title="kvledger lookup service", version="1", docs_url=None, redoc_url=None)
    refuse_with_problems(app)
    describe(app)
    registry = view.registry

    def caller(request: Request, *roles: CallerRole) -> Principal:
        principal = config.credentials.identify(request.headers.get("authorization"))
        if principal is None:
            raise fail(ProblemKind.UNAUTHENTICATED, "send a known bearer token")
        if roles and principal.role not in roles:
            raise fail(ProblemKind.FORBIDDEN, f"not for the role {principal.role.value}")
        return principal

    fleet = (CallerRole.OPERATOR, CallerRole.ROUTER, CallerRole.AUDITOR)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process runs."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> Response:
        """Ready once kv.control was read and an own beacon came back; answers then say what they cover."""
        missing = [
            name
            for name, done in (
                ("kv.control is not read to its end", feed.state.control_read),
                ("no own beacon was read back yet", view.beacon_returned),
                ("kv.events was not reached yet", feed.state.ends is not None),
            )
            if not done
        ]
        if missing:
            return as_response(problem(ProblemKind.INDEX_UNAVAILABLE, "; ".join(missing), retry_after_ms=500))
        document = {"status": "ready", "caught_up": view.caught_up}
        return Response(json.dumps(document), media_type=JSON_TYPE)

    @app.get("/metrics")
    async def metrics_page() -> Response:
        """Prometheus' text format."""
        return Response(metrics.page(), media_type=CONTENT_TYPE)

    @app.get("/v1/workers")
    async def workers(request: Request) -> dict[str, Any]:
        """Every registered worker's rank and how it stands here."""
        caller(request, *fleet)
        now_ns = feed.now_ns()
        shown = [key for key in registry.current.values() if key.worker != CANARY_WORKER]
        return {"workers": [worker_document(view, key, now_ns) for key in shown]}

    @app.get("/v1/watermarks")
    async def watermarks(request: Request) -> dict[str, Any]:
        """How far this replica has applied the log."""
        caller(request, *fleet)
        return {
            "log": registry.log,
            "reader": view.reader,
            "control": {"offset": registry.next_offset, "hash": registry.hash.hex()},
            "events": {str(p): view.position(p) for p in range(registry.partitions)},
            "ends_at_start": {str(p): end for p, end in (feed.state.ends or {}).items()},
            "caught_up": view.caught_up,
            "copies": view.copies,
            "floor_ms": view.floor_ms(),
            "visible_ms": feed.state.visible_ms,
            "block_operations": view.counters.block_operations,
            "token": view.token(),
            "canary": canary.report(),
        }

    giving = asyncio.Semaphore(config.max_snapshots)

    @app.get("/v1/snapshot", response_class=StreamingResponse)
    async def snapshot(request: Request) -> Response:
        """The fold of every registered stream with its positions, as lines that another replica starts from;
        format in `docs/lookup.md`. Signed by the control key."""
        principal = caller(request, CallerRole.OPERATOR, CallerRole.ROUTER)
        if principal.role is CallerRole.ROUTER and EVERY_DOMAIN not in principal.domains:
            raise fail(ProblemKind.FORBIDDEN, "needs a grant for every domain")
        signer = config.signers.get(Role.CONTROL)
        if signer is None:
            raise fail(ProblemKind.FORBIDDEN, "this replica has no control key to sign a snapshot with")
        if feed.state.ends is None or not view.caught_up:
            raise fail(ProblemKind.INDEX_UNAVAILABLE, "the log is still being read", retry_after_ms=1_000)
        if giving.locked():
            raise fail(ProblemKind.TOO_BUSY, f"{config.max_snapshots} snapshots", retry_after_ms=5_000)
        lines = write_snapshot(view, config.connection.topic(EVENTS), signer, feed.last_sha256())
        return StreamingResponse(_one_of(giving, lines), media_type="application/x-ndjson", headers=NO_STORE)

    @app.get("/v1/domains")
    async def domains(request: Request) -> dict[str, Any]:
        """The domains that the caller may read (an auditor: all)."""
        principal = caller(request)
        shown = [
            {"domain": d.name, "tenant": d.tenant, "shared": d.shared}
            for d in registry.domains.values()
            if principal.may_read(d) or principal.role is CallerRole.AUDITOR
        ]
        return {"domains": shown}

    @app.get("/v1/tenants/{tenant}/usage")
    async def usage(request: Request, tenant: str) -> dict[str, Any]:
        """What the tenant's domains hold now, by tier, with its limits and how it stands to them."""
        principal = caller(request)
        known = {domain.tenant for domain in registry.domains.values()}
        mine = principal.owns(tenant) or principal.role is CallerRole.AUDITOR
        if not mine or tenant not in known:
            raise fail(ProblemKind.FORBIDDEN, "no such tenant for this caller")
        return usage_document(view, tenant)

    @app.post("/v1/explain", response_model=Explanation)
    async def explained(request: Request) -> Explanation:
        """Why each of `candidates` would be credited as it is: which block ends its match, and why. The body
        is a lookup's."""
        principal = caller(request)
        query = endpoint.settle(await read_body(request, LookupRequest), principal, None)
        if not isinstance(query, Problem):
            endpoint.note(principal, query, None)
        found = query if isinstance(query, Problem) else explain(view, query, feed.now_ns())
        if isinstance(found, Problem):
            raise ProblemError(found)
        return found

    @app.post("/query")
    async def query(request: Request) -> Response:
        """A lookup by tokens in the shape of Mooncake's RFC #1403, with what that lacks beside it."""
        principal = caller(request)
        form = await read_body(request, FormQuery)
        try:
            asked = lookup_of(form, config.keyring)
        except ValidationError as error:
            raise ProblemError(unreadable(error)) from error
        found = await endpoint.ask(asked, principal)
        headers = answer_headers(found, asked.max_staleness_ms)
        return Response(json.dumps(form_of(found)), media_type=JSON_TYPE, headers=headers)

    @app.post("/query_by_hash")
    async def query_by_hash(request: Request) -> Response:
        """501: hashes of other indexes name no block here."""
        caller(request)
        raise fail(ProblemKind.NOT_IMPLEMENTED, NO_HASHES)

    @app.post("/v1/limits", status_code=201, response_model=Receipt)
    async def limit(request: Request, response: Response, idempotency_key: Key = None) -> Receipt:
        """Sets a tenant's limit on one tier and unit; a bound that isn't given is taken away."""
        principal = caller(request, CallerRole.OPERATOR)
        body = await read_body(request, LimitBody)
        return told(response, await directives.limit(body, principal, key_of(idempotency_key)))

    @app.post("/v1/fences", status_code=201, response_model=Receipt)
    async def fence(request: Request, response: Response, idempotency_key: Key = None) -> Receipt:
        """Fences a worker's rank in its present epoch, or in the epoch named: it is no longer eligible."""
        principal = caller(request, CallerRole.OPERATOR)
        body = await read_body(request, FenceBody)
        return told(response, await directives.fence(body, principal, key_of(idempotency_key)))

    add_order_routes(
        app,
        view,
        caller,
        desk,
        directives,
        subjects,
        verdicts,
        proofs=config.proofs,
        wall_ms=wall_ms,
    )
    return app


async def _one_of(giving: asyncio.Semaphore, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with giving:
        async for line in lines:
            yield line
