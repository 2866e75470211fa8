"""The bodies in docs/deletions.md are read by the service, and there is one of each scope."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from events.subject import SubjectName
from indexer.service.order import AnyScope, DeletionBody, SubjectNamed
from indexer.service.subject import SubjectBody
from tests.support.lookup_http import browser, service
from tests.support.reader_world import World

PAGE = Path("docs/deletions.md").read_text()
BODIES = [
    line for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines() if line
]


@pytest.mark.parametrize("body", BODIES)
def test_a_documented_body_is_an_order(body: str) -> None:
    assert DeletionBody.model_validate_json(body).scope.type == json.loads(body)["scope"]["type"]


def test_every_scope_is_documented() -> None:
    union = get_args(AnyScope)[0]
    known = {get_args(one.model_fields["type"].annotation)[0] for one in get_args(union)}
    assert {json.loads(body)["scope"]["type"] for body in BODIES} == known


def test_a_subject_is_named_alike_where_it_is_bound_and_where_it_is_deleted() -> None:
    for model in (SubjectNamed, SubjectBody):
        field = model.model_fields["subject"]
        assert (field.annotation, *field.metadata) == (str, *get_args(SubjectName)[1:])


async def test_a_bad_scope_is_told_by_the_callers_own_fields() -> None:
    async with browser(service(world=World())) as http:
        answer = await http.post("/v1/deletions", json={"scope": {"type": "tenant", "tenant": "two words"}})
    assert (answer.status_code, answer.json()["field"]) == (400, "scope.tenant")
