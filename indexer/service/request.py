"""What the routes of the control plane read of a request, and what they say of an order."""

from __future__ import annotations

from typing import Annotated, Protocol, TypeVar

from fastapi import Header, Request, Response
from pydantic import BaseModel, ValidationError

from events.receipt import Receipt
from indexer.service.body import ProblemError, fail, unreadable
from indexer.service.credential import CallerRole, Principal
from router_client.problem import ProblemKind
from router_client.wire import JSON_TYPE

B = TypeVar("B", bound=BaseModel)
Key = Annotated[str | None, Header(alias="Idempotency-Key")]


class Caller(Protocol):
    """Who asks; raises ProblemError 401, and 403 if roles are given and the caller has none of them."""

    def __call__(self, request: Request, *roles: CallerRole) -> Principal: ...


def told(response: Response, receipt: Receipt) -> Receipt:
    """201 for what was written now, 200 for what had been under the same Idempotency-Key."""
    response.status_code = 200 if receipt.repeated else 201
    return receipt


def key_of(text: str | None) -> str | None:
    """A usable Idempotency-Key. Raises ProblemError."""
    if text is not None and not (
        0 < len(text) <= 200 and all((c.isascii() and c.isalnum()) or c in "._:@/+-" for c in text)
    ):
        raise fail(
            ProblemKind.MALFORMED, "1 to 200 letters, digits and . _ : @ / + -", field="Idempotency-Key"
        )
    return text


async def read_body(request: Request, model: type[B]) -> B:
    """The JSON body. Raises ProblemError."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON_TYPE:
        raise fail(ProblemKind.MEDIA_TYPE, f"send {JSON_TYPE}")
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        raise ProblemError(unreadable(error)) from error
