"""Every kind of scope, ordered over REST, obeyed by a fleet of real hooks on a real log, and proven."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from auditor.verify import verify_bundle
from events.ids import Role, VerdictKind
from events.model.control import DomainCreated, Scope, SubjectScope
from events.scope import same_scope
from indexer.service.server import start
from kvledger.command.audit import audit_requests
from kvledger.command.delete import delete
from kvledger.command.serve import make_config
from kvledger.command.subject import bind
from kvledger.control import connection, control_writer, read_registry
from kvledger.failure import CommandError, ExitCode
from kvledger.keyfile import ensure_domain_secret, load_signer
from kvledger.settings import Settings
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.fleet_plan import FleetPlan
from kvledger.simulate.launch import running_fleet
from kvledger.simulate.prompt import Prompt
from kvledger.simulate.workload import WorkloadSettings, generate
from tests.support.bundle import second_says
from tests.support.live_log import until
from tests.support.simulation import Names, prepared_log

PLAN = FleetPlan(workers=2, capacity_blocks=2_000, slots=4, step_s=0.002)
DOMAINS = ("acme", "acme/anna", "globex")
WORK = WorkloadSettings(requests=300, tenants=DOMAINS, max_context_tokens=4_000, seed=7)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, home: Path, kafka: str, topic_prefix: str) -> Settings:
    return prepared_log(monkeypatch, home, kafka, topic_prefix)


@contextlib.asynccontextmanager
async def replica(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    config = make_config(settings, host="127.0.0.1", port=0, credentials=None, replica=None, canary=False)
    server = await start(config)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=20) as http:

            async def ready() -> bool:
                return (await http.get("/readyz")).status_code == 200

            await until(ready)
            yield http
    finally:
        await server.stop()


class Stage:
    """A fleet with work in it, a replica, and what came of every prompt."""

    def __init__(self, settings: Settings, fleet: Fleet, http: httpx.AsyncClient, folder: Path) -> None:
        self.settings, self.fleet, self.http, self.folder = settings, fleet, http, folder
        self.names = Names(fleet)
        self.requests = generate(WORK)
        self.operator = load_signer(settings.home, Role.OPERATOR).public_key

    async def serve(self, count: int = 40) -> list[Prompt]:
        prompts = [self.names.learn(request) for request in islice(self.requests, count)]
        jobs = [self.fleet.submit(at % len(self.fleet.workers), prompt) for at, prompt in enumerate(prompts)]
        await asyncio.wait([job.done for job in jobs])
        await self.fleet.settle()
        assert await self.fleet.host.emitter.flush(10)
        return prompts

    def held(self) -> set[bytes]:
        return set().union(*(self.names.pool(worker) for worker in self.fleet.workers))

    def ids(self, prompt: Prompt) -> list[bytes]:
        return [self.names.ids[key] for key in prompt.keys]

    async def post(self, path: str, body: dict[str, Any], status: int = 201) -> dict[str, Any]:
        answer = await self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def newest(self) -> Scope:
        """The scope of the newest order in the log."""
        registry = await read_registry(connection(self.settings))
        return list(registry.deletions.values())[-1].scope

    async def discharged_newest(self) -> bool:
        """Whether every worker has carried out the newest order."""
        newest = (await self.http.get("/v1/deletions")).json()["deletions"][-1]["request"]
        found = (await self.http.get(f"/v1/deletions/{newest}")).json()
        return bool(found["discharged_everywhere"])

    async def prove(self, scope: dict[str, Any]) -> int:
        """Orders the deletion of the scope; it is proven, and both verifiers say so from the file."""
        number = int((await self.post("/v1/deletions", {"scope": scope}))["request"])
        path = self.folder / f"{number}.jsonl"
        (verdict,) = await audit_requests(self.settings, [number], wait_s=90, bundle=path)
        assert (verdict.kind, verdict.reasons) == (VerdictKind.PROVEN, ()), scope
        raw = path.read_bytes()
        assert verify_bundle(raw, self.operator).verdict == verdict
        assert second_says(raw, self.operator) == "PROVEN"
        await until(lambda: self._shown(number))
        file = await self.http.get(f"/v1/deletions/{number}/proof?form=bundle")
        assert file.content == raw
        return number

    async def _shown(self, number: int) -> bool:
        """Whether the replica has read the verdict."""
        found = (await self.http.get(f"/v1/deletions/{number}")).json()
        return bool(found["state"] == "proven" and found["discharged_everywhere"])


@pytest.fixture
async def stage(settings: Settings, tmp_path: Path) -> AsyncIterator[Stage]:
    registry = await read_registry(connection(settings))
    ensure_domain_secret(settings.home, "acme/anna")
    async with control_writer(settings, registry, Role.CONTROL) as writer:
        await writer.append(DomainCreated(domain="acme/anna", tenant="acme"))
    async with running_fleet(settings, PLAN, DOMAINS) as fleet, replica(settings) as http:
        yield Stage(settings, fleet, http, tmp_path)


def of(prompts: list[Prompt], domain: str) -> list[Prompt]:
    return [prompt for prompt in prompts if prompt.tenant == domain and len(prompt.keys) >= 3]


async def prefixes_ids_and_profiles(stage: Stage) -> None:
    prompt = of(await stage.serve(), "acme")[0]
    chain = stage.ids(prompt)
    assert set(chain) <= stage.held()
    scope = {"type": "ids", "domain": "acme", "ids": _packed(chain[2:3])}
    await stage.prove(scope)
    assert chain[1] in stage.held()
    assert chain[2] not in stage.held()

    prompt = of(await stage.serve(), "acme")[-1]
    chain = stage.ids(prompt)
    await stage.prove({"type": "prefix", "domain": "acme", "ids": _packed(chain[:2])})
    assert chain[0] in stage.held()
    assert not stage.held() & set(chain[1:])

    prompt = of(await stage.serve(), "acme")[-1]
    chain, size = stage.ids(prompt), prompt.block_size
    model = stage.fleet.plan.content()
    named = {"profile": model.model, "adapter": model.adapter}
    tokens = prompt.token_ids()[: 2 * size + 3]
    await stage.prove({"type": "prefix_tokens", "domain": "acme", "token_ids": tokens, **named})
    assert chain[0] in stage.held()
    assert not stage.held() & set(chain[1:])

    await stage.serve()
    others = await stage.post(
        "/v1/deletions", {"scope": {"type": "model", "model": model.model, "revision": "no such"}}, 404
    )
    assert others["type"].endswith("profile-unknown")
    await stage.prove({"type": "model", "model": model.model, "revision": model.revision})
    assert not stage.held()
    written, url = await stage.newest(), str(stage.http.base_url)
    for _ in range(2):
        await asyncio.to_thread(
            delete, model=model.model, revision=model.revision, lookup_url=url, idempotency_key="once"
        )
    assert await stage.newest() == written
    with pytest.raises(CommandError, match="no worker has declared it") as caught:
        await asyncio.to_thread(delete, model="no-such", lookup_url=url)
    assert caught.value.exit_code is ExitCode.USAGE


async def subjects_by_bound_blocks_and_by_their_sub_domain(stage: Stage) -> None:
    prompts = of(await stage.serve(60), "acme")
    first, other = prompts[0], next(p for p in prompts if stage.ids(p)[0] != stage.ids(prompts[0])[0])
    model = stage.fleet.plan.content()
    told = {"profile": model.model, "token_ids": first.token_ids(), "shared_tokens": first.block_size + 5}
    bound = await stage.post("/v1/subjects", {"domain": "acme", "subject": "patient 17", "prompt": told})
    nobody = {"type": "subject", "domain": "acme", "subject": "patient-18"}
    await stage.post("/v1/deletions", {"scope": nobody}, 403)
    by_pseudonym = {"type": "subject", "domain": "acme", "subject": bound["pseudonym"]}
    number = await stage.prove({"type": "subject", "domain": "acme", "subject": "patient 17"})
    written = await stage.newest()
    assert isinstance(written, SubjectScope)
    assert written.subject == bound["pseudonym"]
    chain = stage.ids(first)
    assert chain[0] in stage.held()
    assert not stage.held() & set(chain[1:])
    assert stage.ids(other)[0] in stage.held()

    # What was bound too late makes the old request ask for a new one, as soon as something old is below it.
    leaf = stage.ids(other)[1].hex()
    file = stage.folder / "leaves"
    file.write_text(leaf + "\n")
    await asyncio.to_thread(bind, "acme", "patient 17", file)
    (verdict,) = await audit_requests(stage.settings, [number], wait_s=0)
    assert verdict.kind is VerdictKind.UNPROVABLE
    assert {reason.reason for reason in verdict.reasons} == {"scope_undecidable"}
    await stage.prove(by_pseudonym)
    assert stage.ids(other)[1] not in stage.held()

    written = await stage.newest()
    await asyncio.to_thread(delete, domain="acme", subject="patient 17")
    again = await stage.newest()
    assert isinstance(again, SubjectScope)
    assert (same_scope(again, written), leaf in [one.hex() for one in again.leaves or ()]) == (True, True)
    # In the midst of another deletion of the subject the old one stays as it was answered.
    (verdict,) = await audit_requests(stage.settings, [number], wait_s=0)
    assert verdict.kind is VerdictKind.PROVEN
    await until(stage.discharged_newest)
    (verdict,) = await audit_requests(stage.settings, [number], wait_s=0)
    assert verdict.kind is VerdictKind.PROVEN

    theirs = of(prompts + await stage.serve(60), "acme/anna")
    assert theirs
    await stage.prove({"type": "subject", "domain": "acme", "subject": "anna"})
    assert not stage.held() & {block for prompt in theirs for block in stage.ids(prompt)}


async def domains_and_tenants(stage: Stage) -> None:
    prompts = await stage.serve(60)
    await stage.prove({"type": "domain", "domain": "acme"})
    anna = {block for prompt in of(prompts, "acme/anna") for block in stage.ids(prompt)}
    assert anna <= stage.held()
    await stage.prove({"type": "tenant", "tenant": "acme"})
    assert not stage.held() & anna
    assert {block for prompt in of(prompts, "globex") for block in stage.ids(prompt)} <= stage.held()


async def test_every_scope_is_obeyed_and_proven(stage: Stage) -> None:
    await subjects_by_bound_blocks_and_by_their_sub_domain(stage)
    await prefixes_ids_and_profiles(stage)
    await domains_and_tenants(stage)


def _packed(ids: list[bytes]) -> str:
    import base64

    return base64.b64encode(b"".join(ids)).decode()
