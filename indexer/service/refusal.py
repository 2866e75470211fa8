"""Problem documents out of the control plane, whatever went wrong there."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from indexer.service.body import ProblemError
from router_client.problem import Problem, ProblemKind, problem
from router_client.wire import PROBLEM_TYPE

MAX_SHOWN_PATH = 200
KINDS = {
    400: ProblemKind.MALFORMED,
    401: ProblemKind.UNAUTHENTICATED,
    403: ProblemKind.FORBIDDEN,
    404: ProblemKind.NOT_FOUND,
    405: ProblemKind.METHOD_NOT_ALLOWED,
    413: ProblemKind.TOO_LARGE,
    415: ProblemKind.MEDIA_TYPE,
}


def as_response(document: Problem) -> Response:
    """A problem as a response, with the headers that belong to its status."""
    headers = {"Cache-Control": "no-store"}
    if document.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="kvledger"'
    if document.retry_after_ms is not None:
        headers["Retry-After"] = str(max(1, -(-document.retry_after_ms // 1_000)))
    body = document.model_dump_json(exclude_none=True)
    return Response(body, status_code=document.status, media_type=PROBLEM_TYPE, headers=headers)


def refuse_with_problems(app: FastAPI) -> None:
    """Makes every refusal of the application a problem."""

    @app.exception_handler(ProblemError)
    async def refused(request: Request, error: ProblemError) -> Response:
        del request
        return as_response(error.document)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        kind = KINDS.get(error.status_code, ProblemKind.INTERNAL)
        path = request.url.path[:MAX_SHOWN_PATH]
        detail = {
            ProblemKind.NOT_FOUND: f"nothing is served at {path}; /openapi.json lists every path",
            ProblemKind.METHOD_NOT_ALLOWED: f"{path} does not take {request.method}; see /openapi.json",
        }.get(kind, "")
        return as_response(problem(kind, detail))

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> Response:
        del request, error
        return as_response(problem(ProblemKind.INTERNAL))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        del request
        first = error.errors()[0]
        return as_response(problem(ProblemKind.MALFORMED, str(first["msg"]), field=str(first["loc"][-1])))
