"""Routes of deletions and what belongs to them: orders, their progress and proofs, holds, policies, subjects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response

from events.fold.registry_state import Deletion
from events.receipt import Receipt
from indexer.service.body import fail
from indexer.service.credential import CallerRole, Principal
from indexer.service.directive import DirectiveDesk, HoldBody, PolicyBody, ReleaseBody
from indexer.service.document import hold_document, order_document
from indexer.service.order import DeletionBody, InvalidationBody, OrderDesk, visible_to
from indexer.service.progress import Progress, progress_of, states_of
from indexer.service.request import Caller, Key, key_of, read_body, told
from indexer.service.subject import SubjectBody, SubjectDesk, SubjectReceipt
from indexer.service.verdict import Judged, VerdictFeed
from router_client.problem import ProblemKind
from router_client.view import LocalView
from router_client.wire import JSON_TYPE

BUNDLE_TYPE = "application/x-ndjson"
LISTED, MOST_LISTED = 100, 1_000
"""Orders on a page of the list, unless the caller wants another number, and at most."""
Limit = Annotated[int, Query(ge=1, le=MOST_LISTED, description="how many orders at most")]
After = Annotated[int | None, Query(ge=0, description="only orders with a higher number than this one")]


def add_order_routes(
    app: FastAPI,
    view: LocalView,
    caller: Caller,
    desk: OrderDesk,
    directives: DirectiveDesk,
    subjects: SubjectDesk,
    verdicts: VerdictFeed,
    *,
    proofs: Path | None,
    wall_ms: Callable[[], int],
) -> None:
    """Routes over one view; `proofs` is where bundles lie by their SHA-256."""
    registry = view.registry

    def seen(principal: Principal, number: int) -> Deletion:
        order = next((o for o in visible_to(principal, registry) if o.number == number), None)
        if order is None:
            raise fail(ProblemKind.NOT_FOUND, f"no order {number} for this caller")
        return order

    def shown(order: Deletion) -> tuple[Progress, Judged | None]:
        judged = verdicts.of(order.number)
        return progress_of(order, view, judged, wall_ms()), judged

    @app.post("/v1/deletions", status_code=201, response_model=Receipt)
    async def delete(request: Request, response: Response, idempotency_key: Key = None) -> Receipt:
        """Orders a deletion; 201 with a signed receipt, 200 for a repeated Idempotency-Key."""
        principal = caller(request, CallerRole.OPERATOR, CallerRole.TENANT)
        body = await read_body(request, DeletionBody)
        return told(response, await desk.delete(body, principal, key_of(idempotency_key)))

    @app.get("/v1/deletions")
    async def deletions(request: Request, limit: Limit = LISTED, after: After = None) -> dict[str, Any]:
        """The caller's orders, oldest first: each with its state in one word, as `GET /v1/deletions/{n}` has it. `next`
        is the `after` of the page behind, null on the last one."""
        behind = -1 if after is None else after
        wanted = [order for order in visible_to(caller(request), registry) if order.number > behind]
        orders = wanted[:limit]
        states = states_of(orders, view, verdicts)
        return {
            "deletions": [order_document(order) | {"state": states[order.number]} for order in orders],
            "next": orders[-1].number if len(wanted) > limit else None,
        }

    @app.get("/v1/deletions/{number}")
    async def deletion(request: Request, number: int) -> dict[str, Any]:
        """One order, what it waits for, and how each holder stands to it; `discharged_everywhere` is null where
        nobody is known to owe but not everything can be known here. The verdict is the auditor's."""
        order = seen(caller(request), number)
        progress, judged = shown(order)
        return {
            **order_document(order),
            "state": progress.state,
            "held_by": [hold.model_dump(mode="json") for hold in progress.holds],
            "deadline": None if progress.deadline is None else progress.deadline.model_dump(mode="json"),
            "verdict": None if judged is None else judged.given.verdict.value,
            "discharged_everywhere": progress.discharged_everywhere,
            "unread_domains": progress.unread,
            "holders": [h.model_dump(mode="json") for h in progress.holders],
        }

    @app.get("/v1/deletions/{number}/proof")
    async def proof(request: Request, number: int, form: str = "verdict") -> Response:
        """The newest verdict, with a link to its bundle if it lies here (`form=bundle`). 409 until somebody has
        judged the order, and for the bundle while there is none."""
        principal = caller(request, CallerRole.OPERATOR, CallerRole.AUDITOR, CallerRole.TENANT)
        order, judged = seen(principal, number), verdicts.of(number)
        if form not in ("verdict", "bundle"):
            raise fail(ProblemKind.MALFORMED, "verdict or bundle", field="form")
        if not order.proves:
            raise fail(ProblemKind.NOT_JUDGED, "an invalidation is carried out and not proven")
        if judged is None:
            raise fail(ProblemKind.NOT_JUDGED, f"nobody has judged order {number} yet: kvledger audit run")
        path = await asyncio.to_thread(bundle_of, proofs, judged)
        if form == "verdict":
            document = verdict_document(judged)
            if path is not None:
                document["bundle"] = f"/v1/deletions/{number}/proof?form=bundle"
            return as_json(document)
        if path is None:
            raise fail(
                ProblemKind.NOT_JUDGED, "no bundle of its newest verdict lies here: audit run --bundle"
            )
        raw = await asyncio.to_thread(path.read_bytes)
        name = f'attachment; filename="deletion-{number}.jsonl"'
        return Response(raw, media_type=BUNDLE_TYPE, headers={"Content-Disposition": name})

    @app.post("/v1/invalidations", status_code=201, response_model=Receipt)
    async def invalidate(request: Request, response: Response, idempotency_key: Key = None) -> Receipt:
        """Orders an invalidation (a model rollout, an integrity fault)."""
        principal = caller(request, CallerRole.OPERATOR)
        body = await read_body(request, InvalidationBody)
        return told(response, await desk.invalidate(body, principal, key_of(idempotency_key)))

    @app.post("/v1/subjects", status_code=201, response_model=SubjectReceipt)
    async def bind(request: Request) -> SubjectReceipt:
        """Binds blocks to a data subject, so that a deletion can name the subject. Repeating it is harmless."""
        principal = caller(request, CallerRole.OPERATOR, CallerRole.TENANT, CallerRole.ROUTER)
        return await subjects.bind(await read_body(request, SubjectBody), principal)

    @app.post("/v1/holds", status_code=201, response_model=Receipt)
    async def hold(request: Request, response: Response, idempotency_key: Key = None) -> Receipt:
        """Places a legal hold on a domain or on a tenant's domains: deletions that reach them wait, and say so."""
        principal = caller(request, CallerRole.OPERATOR)
        body = await read_body(request, HoldBody)
        return told(response, await directives.hold(body, principal, key_of(idempotency_key)))

    @app.post("/v1/holds/release", status_code=201, response_model=Receipt)
    async def release(request: Request, response: Response, idempotency_key: Key = None) -> Receipt:
        """Releases a legal hold; what waited for it alone goes on by itself."""
        principal = caller(request, CallerRole.OPERATOR)
        body = await read_body(request, ReleaseBody)
        return told(response, await directives.release(body, principal, key_of(idempotency_key)))

    @app.get("/v1/holds")
    async def holds(request: Request) -> dict[str, Any]:
        """Holds that stand: all for operators and auditors, those on its own domains for a tenant."""
        principal = caller(request, CallerRole.OPERATOR, CallerRole.AUDITOR, CallerRole.TENANT)
        found = [
            hold_document(one)
            for one in registry.holds.values()
            if principal.role is not CallerRole.TENANT
            or principal.tenant in (one.body.tenant, registry.owner(one.body.domain or ""))
        ]
        return {"holds": found}

    @app.post("/v1/policies", status_code=201, response_model=Receipt)
    async def policy(request: Request, response: Response, idempotency_key: Key = None) -> Receipt:
        """Sets how long copies of a domain, or of a tenant, may stay, and how fast a deletion is to be proven."""
        principal = caller(request, CallerRole.OPERATOR)
        body = await read_body(request, PolicyBody)
        return told(response, await directives.policy(body, principal, key_of(idempotency_key)))


def bundle_of(proofs: Path | None, judged: Judged) -> Path | None:
    """The file of the bundle that a verdict names, if it lies here."""
    digest = judged.given.bundle_sha256
    if proofs is None or digest is None:
        return None
    path = proofs / f"{digest.hex()}.jsonl"
    return path if path.is_file() else None


def verdict_document(judged: Judged) -> dict[str, Any]:
    return {
        **judged.given.model_dump(mode="json", exclude={"type"}),
        "signer": judged.signer,
        "audit_offset": judged.offset,
        "bundle": None,
    }


def as_json(document: dict[str, Any]) -> Response:
    return Response(json.dumps(document), media_type=JSON_TYPE)
