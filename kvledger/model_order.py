"""Deletions by model over the lookup service: which profiles were declared of one is known where the streams are read.

So the rule has one home, and a command waits with the service until all that is announced is read.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import httpx
from pydantic import ValidationError

from events.receipt import Receipt
from kvledger.failure import CommandError, ExitCode
from router_client.problem import Problem

ORDER_S = 30.0
DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


async def order_deletion(url: str, token: str | None, body: dict[str, Any], key: str) -> Receipt:
    """Asks the service at `url` for the deletion under an idempotency key; its receipt, its signature not looked at.
    Raises CommandError: repeat it with the same key if the service didn't answer."""
    headers = {"Idempotency-Key": key} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        async with httpx.AsyncClient(timeout=ORDER_S, trust_env=False, headers=headers) as client:
            answer = await client.post(f"{url}/v1/deletions", json=body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandError(
            f"the lookup service at {url}, which knows a model's profiles, doesn't answer ({type(error).__name__})",
            advice=f"start it with `kvledger up` or name it with --lookup-url; repeat with --idempotency-key {key}",
            exit_code=ExitCode.UNAVAILABLE,
        ) from error
    try:
        if answer.status_code in (HTTPStatus.OK, HTTPStatus.CREATED):
            return Receipt.model_validate_json(answer.content)
        problem = Problem.model_validate_json(answer.content)
    except ValidationError as error:
        raise CommandError(
            f"what answers at {url} with {answer.status_code} is no lookup service of kvledger",
            advice="name it with --lookup-url",
            exit_code=ExitCode.CONFIGURATION,
        ) from error
    raise _refused(url, answer.status_code, problem)


def _refused(url: str, status: int, problem: Problem) -> CommandError:
    said = f"{problem.title}: {problem.detail}" if problem.detail else problem.title
    if status in DENIED:
        advice, code = "--token-file names an operator's bearer token", ExitCode.CONFIGURATION
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        advice, code = "try again, with the same --idempotency-key if you gave one", ExitCode.UNAVAILABLE
    else:
        advice, code = f"GET {url}/v1/workers shows what workers have declared", ExitCode.USAGE
    return CommandError(f"the lookup service refuses: {said}", advice=advice, exit_code=code)
