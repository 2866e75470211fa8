"""Where an order stands: held, late, proven; who may see its proof; and what the metrics say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from events.chain import sha256
from events.codec import dump
from events.ids import Role, VerdictKind
from events.model.audit import AuditRecord, VerdictGiven
from events.model.control import (
    DeletionRequested,
    DomainScope,
    HoldReleased,
    HoldSet,
    InvalidationRequested,
    PolicySet,
    Revoked,
    SubjectScope,
)
from events.model.part import Ack, Refused, RequestStanding
from events.signing import Signer
from indexer.service.app import LookupService
from indexer.service.progress import order_ages, progress_of
from tests.support.lookup_http import CREDENTIALS, browser, kind, service
from tests.support.reader_world import World

NOW_MS = 1_700_000_000_000
ACME = DeletionRequested(scope=DomainScope(domain="acme"), requester="t", deadline_s=3_600)


def verdict(world: World, number: int, said: VerdictKind, bundle: bytes | None = None) -> bytes:
    auditor = world.log.signers[Role.AUDITOR]
    return signed(auditor, world.log.log, number, said, bundle)


def signed(auditor: Signer, log: str, number: int, said: VerdictKind, bundle: bytes | None = None) -> bytes:
    digest = None if bundle is None else sha256(bundle)
    given = VerdictGiven(
        log=log, request=number, verdict=said, reasons=(), frontier=(), bundle_sha256=digest, given_ms=1
    )
    raw = dump(given)
    return dump(AuditRecord(signer=auditor.id, signature=auditor.sign(raw), statement=raw))


def world_with(*bodies: Any) -> tuple[World, list[int]]:
    world = World(domains=[("acme", "acme")])
    world.join("w0")
    return world, [world.order(body, Role.CONTROL) for body in bodies]


def order_of(made: LookupService, number: int, now_ms: int = NOW_MS) -> Any:
    order = made.view.registry.deletions[number]
    return progress_of(order, made.view, made.verdicts.of(number), now_ms)


def test_an_order_under_a_hold_says_who_holds_it_since_when_and_why() -> None:
    world, (_, number) = world_with(HoldSet(hold="case-7", tenant="acme", reason="court"), ACME)
    found = order_of(service(world=world), number)
    assert found.state == "held"
    assert [(one.hold, one.tenant, one.reason, one.since_ms) for one in found.holds] == [
        ("case-7", "acme", "court", 1)
    ]
    world.order(HoldReleased(hold="case-7"), Role.CONTROL)
    assert order_of(service(world=world), number).state == "open"


def test_a_hold_elsewhere_holds_nothing_here() -> None:
    world, (_, number) = world_with(HoldSet(hold="h", domain="default", reason="court"), ACME)
    assert order_of(service(world=world), number).state == "open"


def test_the_deadline_names_who_is_late_only_once_it_has_passed() -> None:
    world, (number,) = world_with(ACME)
    made = service(world=world)
    before = order_of(made, number, now_ms=1 + 3_599_000).deadline
    assert (before.passed, before.late, before.hours_left) == (False, [], 0.0)
    after = order_of(made, number, now_ms=1 + 2 * 3_600_000).deadline
    assert (after.passed, after.hours_left) == (True, -1.0)
    just_over = order_of(made, number, now_ms=1 + 3_600_001).deadline
    assert (just_over.passed, str(just_over.hours_left)) == (True, "0.0")
    assert [(one.worker, one.domain, one.standing) for one in after.late] == [("w0", "acme", "owes")]
    made.verdicts.take(5, verdict(world, number, VerdictKind.PROVEN))
    proven = order_of(made, number, now_ms=1 + 2 * 3_600_000)
    assert (proven.state, proven.deadline.late) == ("proven", [])


def test_a_tenants_policy_is_the_deadline_of_requests_that_name_none() -> None:
    body = DeletionRequested(scope=DomainScope(domain="acme"), requester="t")
    world, (early, _, late) = world_with(body, PolicySet(tenant="acme", prove_within_s=60), body)
    made = service(world=world)
    assert order_of(made, late).deadline.due_ms == 2 + 60_000
    assert order_of(made, early).deadline.due_ms == 1 + 60_000


def test_verdicts_of_others_and_of_revoked_auditors_count_for_nothing() -> None:
    world, (number,) = world_with(ACME)
    made = service(world=world)
    other = Signer.from_seed(bytes(32))
    made.verdicts.take(1, signed(other, world.log.log, number, VerdictKind.PROVEN))
    made.verdicts.take(2, signed(world.log.signers[Role.AUDITOR], "another", number, VerdictKind.PROVEN))
    made.verdicts.take(3, b"\x00garbage")
    assert order_of(made, number).state == "open"
    made.verdicts.take(4, verdict(world, number, VerdictKind.REFUTED))
    assert order_of(made, number).state == "refuted"
    world.order(Revoked(public_key=world.log.signers[Role.AUDITOR].public_key), Role.OPERATOR)
    again = service(world=world)
    again.verdicts.take(4, verdict(world, number, VerdictKind.PROVEN))
    assert order_of(again, number).state == "open"


def test_an_older_verdict_never_takes_the_place_of_a_newer_one() -> None:
    world, (number,) = world_with(ACME)
    made = service(world=world)
    made.verdicts.take(9, verdict(world, number, VerdictKind.PROVEN))
    made.verdicts.take(4, verdict(world, number, VerdictKind.REFUTED))
    assert order_of(made, number).state == "proven"


def test_ages_are_counted_by_state() -> None:
    invalid = InvalidationRequested(scope=DomainScope(domain="acme"), requester="t", reason="operator")
    hold = HoldSet(hold="h", domain="acme", reason="court")
    default = DeletionRequested(scope=DomainScope(domain="default"), requester="t")
    world, numbers = world_with(ACME, hold, invalid, default)
    made = service(world=world)
    made.verdicts.take(1, verdict(world, numbers[3], VerdictKind.PROVEN))
    ages = order_ages(made.view, made.verdicts, 10_001)
    assert ages["held"] == (1, 10.0)
    assert ages["proven"] == (1, 10.0)
    assert ages["open"] == (0, 0.0)
    assert list(ages) == ["proven", "refuted", "unprovable", "held", "refused", "discharged", "open"]


async def test_the_list_the_metric_and_the_order_itself_say_the_same_word() -> None:
    world = World(domains=[("acme", "acme")])
    hook = world.join("w0")
    first, second, third = (world.order(ACME) for _ in range(3))
    left = {first: 0, second: 1, third: 1}
    acks = tuple(RequestStanding(request=n, removed=0, old_left=old) for n, old in left.items())
    refused = Refused(request=second, reason="blocks_in_use", cure="wait")
    hook.write(events=[Ack(requests=acks), refused], domain="acme")
    made = service(world=world)
    said = {number: order_of(made, number).state for number in (first, second, third)}
    assert said == {first: "discharged", second: "refused", third: "open"}
    async with browser(made) as http:
        listed = (await http.get("/v1/deletions")).json()["deletions"]
    assert {one["request"]: one["state"] for one in listed} == said
    ages = order_ages(made.view, made.verdicts, 10_001)
    assert [ages[word][0] for word in ("discharged", "refused", "open", "held")] == [1, 1, 1, 0]
    # Above the bound nothing is claimed of a holder that wasn't looked at.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("indexer.service.progress.LOOKS", 1)
        ages = order_ages(made.view, made.verdicts, 10_001)
    assert [ages[word][0] for word in ("discharged", "refused", "open")] == [0, 0, 3]


async def test_a_proof_is_for_who_may_see_the_order(tmp_path: Path) -> None:
    world, (number, invalidation) = world_with(
        ACME, InvalidationRequested(scope=DomainScope(domain="acme"), requester="t", reason="operator")
    )
    made = service(world=world, credentials=CREDENTIALS, proofs=tmp_path)
    bundle = b'{"a bundle": 1}\n'

    async def get(who: str, path: str) -> tuple[int, Any]:
        async with browser(made) as http:
            answer = await http.get(path, headers={"Authorization": f"Bearer {who}"})
        return answer.status_code, kind(answer) if answer.status_code != 200 else answer

    path = f"/v1/deletions/{number}/proof"
    assert await get("acme", path) == (409, "not-judged")
    made.verdicts.take(3, verdict(world, number, VerdictKind.PROVEN, bundle))
    for who in ("acme", "operator", "auditor"):
        status, answer = await get(who, path)
        assert (status, answer.json()["verdict"], answer.json()["bundle"]) == (200, "PROVEN", None)
    assert await get("acme", f"{path}?form=bundle") == (409, "not-judged")
    (tmp_path / f"{sha256(bundle).hex()}.jsonl").write_bytes(bundle)
    _, answer = await get("acme", path)
    status, file = await get("acme", answer.json()["bundle"])
    assert (status, file.content) == (200, bundle)
    assert await get("router", path) == (403, "forbidden")
    assert await get("acme", "/v1/deletions/99999/proof") == (404, "not-found")
    assert await get("acme", f"{path}?form=pdf") == (400, "malformed")
    assert await get("operator", f"/v1/deletions/{invalidation}/proof") == (409, "not-judged")
    status, answer = await get("acme", f"/v1/deletions/{number}")
    assert (answer.json()["state"], answer.json()["verdict"]) == ("proven", "PROVEN")
    _, answer = await get("acme", "/v1/deletions")
    assert [one["state"] for one in answer.json()["deletions"]] == ["proven", "open"]


async def test_the_list_is_paged_by_the_orders_numbers_and_holds_each_one_once() -> None:
    other = DeletionRequested(scope=DomainScope(domain="default"), requester="t")
    world, numbers = world_with(*([ACME, other] * 60))
    mine = numbers[::2]
    async with browser(service(world=world, credentials=CREDENTIALS)) as http:

        async def page(who: str, query: str = "") -> tuple[list[int], int | None]:
            answer = await http.get(f"/v1/deletions{query}", headers={"Authorization": f"Bearer {who}"})
            document = answer.json()
            return [one["request"] for one in document["deletions"]], document["next"]

        assert await page("operator") == (numbers[:100], numbers[99])
        assert await page("operator", f"?after={numbers[99]}") == (numbers[100:], None)
        assert await page("operator", "?limit=1000") == (numbers, None)
        assert await page("operator", "?limit=120") == (numbers, None)
        told, after = await page("acme", "?limit=7")
        while after is not None:
            assert told[-1] == after
            behind, after = await page("acme", f"?limit=7&after={after}")
            told += behind
        assert told == mine
        assert await page("acme", f"?after={numbers[-1]}") == ([], None)
        for query in ("limit=0", "limit=1001", "limit=x", "after=-1", "after=x"):
            answer = await http.get(f"/v1/deletions?{query}", headers={"Authorization": "Bearer acme"})
            assert (answer.status_code, kind(answer)) == (400, "malformed"), query
        paths = (await http.get("/openapi.json")).json()["paths"]
    told_of = {one["name"]: one["schema"] for one in paths["/v1/deletions"]["get"]["parameters"]}
    assert (told_of["limit"]["default"], told_of["limit"]["maximum"]) == (100, 1_000)
    assert "after" in told_of


async def test_a_subjects_order_by_pseudonym_is_its_tenants_affair() -> None:
    scope = SubjectScope(domain="acme", subject="ab" * 32, pseudonym=b"\xab" * 32, leaves=(bytes(16),))
    world, (number,) = world_with(DeletionRequested(scope=scope, requester="t"))
    async with browser(service(world=world, credentials=CREDENTIALS)) as http:
        answer = await http.get(f"/v1/deletions/{number}", headers={"Authorization": "Bearer acme"})
    assert (answer.status_code, answer.json()["scope"]["subject"]) == (200, "ab" * 32)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/holds", {"hold": "h", "reason": "court"}, 400),
        ("/v1/holds", {"hold": "h", "reason": "court", "domain": "acme", "tenant": "acme"}, 400),
        ("/v1/holds", {"hold": "h", "reason": "court", "domain": "nowhere"}, 403),
        ("/v1/holds/release", {"hold": "h"}, 403),
        ("/v1/policies", {"tenant": "acme", "retain_s": 3}, 400),
        ("/v1/policies", {"tenant": "acme"}, 403),
        ("/v1/subjects", {"domain": "acme", "subject": "x"}, 400),
        ("/v1/subjects", {"domain": "acme", "subject": "x", "leaves": ["00" * 15]}, 400),
        ("/v1/subjects", {"domain": "acme", "subject": "x", "leaves": ["00" * 16]}, 403),
    ],
)
async def test_a_bad_directive_is_refused_and_a_replica_without_key_takes_none(
    path: str, body: dict[str, Any], status: int
) -> None:
    async with browser(service()) as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == status, answer.text
    kind(answer)
