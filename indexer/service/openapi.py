"""The OpenAPI document: FastAPI's own for the control plane, with the hot path's models added to it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from indexer.service.directive import FenceBody, HoldBody, LimitBody, PolicyBody, ReleaseBody
from indexer.service.lookup import BatchRequest
from indexer.service.order import DeletionBody, InvalidationBody
from indexer.service.query_form import FormQuery
from indexer.service.subject import SubjectBody
from router_client.problem import Problem
from router_client.wire import (
    AS_OF_HEADER,
    BINARY_TYPE,
    BOUND_HEADER,
    CONSISTENCY_HEADER,
    COVERAGE_HEADER,
    JSON_TYPE,
    PROBLEM_TYPE,
    STALENESS_HEADER,
    TOKEN_HEADER,
    Answer,
    BinaryQuery,
    LookupRequest,
)

HEADERS = (
    AS_OF_HEADER, STALENESS_HEADER, BOUND_HEADER, CONSISTENCY_HEADER, COVERAGE_HEADER, TOKEN_HEADER
)  # fmt: skip
ORDERS: dict[str, type[BaseModel]] = {
    "/v1/deletions": DeletionBody,
    "/v1/invalidations": InvalidationBody,
    "/v1/limits": LimitBody,
    "/v1/fences": FenceBody,
    "/v1/holds": HoldBody,
    "/v1/holds/release": ReleaseBody,
    "/v1/policies": PolicyBody,
    "/v1/subjects": SubjectBody,
    "/query": FormQuery,
}
REFUSALS = ("400", "401", "403", "404", "409", "413", "415", "422", "503")


def describe(app: FastAPI) -> None:
    """Makes `/openapi.json` hold every route."""
    plain = app.openapi

    def whole() -> dict[str, Any]:
        document = plain()
        if "/v1/lookup" not in document["paths"]:
            _add(document)
        return document

    app.openapi = whole  # type: ignore[method-assign]


def _add(document: dict[str, Any]) -> None:
    template = "#/components/schemas/{model}"
    models: tuple[type[BaseModel], ...] = (
        LookupRequest,
        BinaryQuery,
        BatchRequest,
        Answer,
        Problem,
        *ORDERS.values(),
    )
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=template)
    document.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
    query = schemas["$defs"]["BinaryQuery"]["properties"]
    document["paths"]["/v1/lookup"] = {
        "post": {
            "summary": "Where is this prefix cached, within the caller's bound?",
            "parameters": [
                {
                    "name": name,
                    "in": "query",
                    "required": False,
                    "description": f"beside a body of {BINARY_TYPE} only",
                    "schema": schema,
                }
                for name, schema in query.items()
            ],
            "requestBody": {
                "required": True,
                "content": {
                    JSON_TYPE: {"schema": _ref("LookupRequest")},
                    BINARY_TYPE: {"schema": {"type": "string", "format": "binary"}},
                },
            },
            "responses": {
                "200": {
                    "description": "Within the bound, or marked",
                    "headers": {name: {"schema": {"type": "string"}} for name in HEADERS},
                    "content": {JSON_TYPE: {"schema": _ref("Answer")}},
                },
                **_refusals(),
            },
        }
    }
    document["paths"]["/v1/lookup/batch"] = {
        "post": {
            "summary": "Several lookups; each has its own answer or problem",
            "requestBody": _body("BatchRequest"),
            "responses": {
                "200": {
                    "description": "In the order of the lookups",
                    "content": {
                        JSON_TYPE: {
                            "schema": {
                                "type": "object",
                                "properties": {
                                    "answers": {
                                        "type": "array",
                                        "items": {"anyOf": [_ref("Answer"), _ref("Problem")]},
                                    }
                                },
                            }
                        }
                    },
                },
                **_refusals(),
            },
        }
    }
    document["paths"]["/v1/watch"] = {"get": _watch()}
    for path, model in ORDERS.items():
        document["paths"][path]["post"]["requestBody"] = _body(model.__name__)


def _watch() -> dict[str, Any]:
    return {
        "summary": "The state of the fleet as server-sent events, until the caller goes",
        "description": (
            "Events: `hello` {log, reader, streams, missed, keep_alive_s}, then a `stream` {worker, dp_rank, "
            "epoch, state, staleness_ms, fault} for each stream as it stands, `coverage` {included, eligible, "
            "worst_staleness_ms, floor_ms, caught_up}, `position` {control, token}, `canary` (not for "
            "tenants) and `current` {streams}; from then on what changes, figures at most once a second; "
            "`end` {reason: slow | shutdown | failed} is the last. A comment is sent after 10 s without an "
            "event. Nothing is replayed: a connection is always told the whole present state first. With "
            "`Last-Event-ID` of the same replica's life, `missed` in `hello` says how many changes went by."
        ),
        "parameters": [
            {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"}}
        ],
        "responses": {
            "200": {
                "description": "Events",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            "401": _refusals()["401"],
            "503": _refusals()["503"],
        },
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _body(name: str) -> dict[str, Any]:
    return {"required": True, "content": {JSON_TYPE: {"schema": _ref(name)}}}


def _refusals() -> dict[str, Any]:
    return {
        status: {"description": "Refused", "content": {PROBLEM_TYPE: {"schema": _ref("Problem")}}}
        for status in REFUSALS
    }
