"""`kvledger attest` on a real log and a server that speaks Kubernetes' API: what ends is attested, and discharges."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from events.ids import Role
from events.model.control import Granted, Registered
from kvledger.attesting import Attester, EngineEnd
from kvledger.cluster import ClusterAddress, ClusterError, connected
from kvledger.command.audit import audit_requests
from kvledger.control import connection, control_writer, read_registry
from kvledger.keyfile import ensure_key, load_signer
from kvledger.settings import Settings
from tests.support.command import failure, kvledger
from tests.support.fake_cluster import FakeCluster, pod, terminated
from tests.support.live_log import until
from tests.support.simulation import prepared_log


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, home: Path, kafka: str, topic_prefix: str) -> Settings:
    return prepared_log(monkeypatch, home, kafka, topic_prefix)


async def register(settings: Settings, worker: str, life: str, **place: Any) -> None:
    registry = await read_registry(connection(settings))
    body = Registered(
        worker=worker, rank=0, epoch=f"e-{life}", engine_life=life, public_key=bytes(32), partition=0, **place
    )
    async with control_writer(settings, registry, Role.ENROLMENT) as writer:
        await writer.append(body)


def address(cluster: FakeCluster, folder: Path, token: str = "secret") -> ClusterAddress:
    file = folder / "token"
    file.write_text(token + "\n")
    return ClusterAddress(cluster.url, file, None, "llm", None)


def ended(container_id: str, uid: str, **status: Any) -> dict[str, Any]:
    one = pod(f"vllm-{uid}", uid, container_id=container_id)
    one["status"]["containerStatuses"][0]["state"] = terminated(container_id)
    one["status"].update(status)
    return one


async def test_pods_are_watched_and_their_ends_attested(settings: Settings, tmp_path: Path) -> None:
    cluster = FakeCluster()
    told: list[EngineEnd] = []
    for name in ("a", "b", "c", "d"):
        await register(settings, f"w-{name}", f"life-{name}", pod=f"uid-{name}", container="engine")
        await cluster.put(pod(f"vllm-{name}", f"uid-{name}", container_id=f"containerd://{name}"))
    async with cluster.serving(), connected(address(cluster, tmp_path)) as client:
        attester = Attester(settings, client, told=lambda end, _: told.append(end))
        work = asyncio.create_task(attester.run())
        try:
            await until(lambda: cluster.watches == 1)
            await cluster.put(ended("containerd://a", "uid-a", phase="Failed"))
            await until(lambda: [end.worker for end in told] == ["w-a"])
            # Deleted without a terminated status is not death; with one that came last, it is.
            await cluster.delete("uid-b")
            last = ended("containerd://c", "uid-c")
            last["metadata"]["deletionTimestamp"] = "2026-11-30T09:00:00Z"
            await cluster.put(last)
            await cluster.delete("uid-c")
            await cluster.bookmark()
            await until(lambda: [end.worker for end in told] == ["w-a", "w-c"])
            # The watch has expired: it lists again, and misses nothing that happened meanwhile.
            lists = cluster.lists
            await cluster.compact()
            await until(lambda: cluster.lists > lists)
            await cluster.put(ended("containerd://d", "uid-d", phase="Succeeded"))
            await until(lambda: [end.worker for end in told] == ["w-a", "w-c", "w-d"])
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            await attester.stop()
        again = Attester(settings, client, told=lambda end, _: told.append(end))
        try:
            assert await again.once() == 0
        finally:
            await again.stop()
    exits = (await read_registry(connection(settings))).exits
    assert {worker for worker, _ in exits} == {"w-a", "w-c", "w-d"}
    assert exits["w-a", "life-a"].attester == "kubernetes"
    assert "node-1" in exits["w-a", "life-a"].evidence


async def test_an_end_that_the_key_may_not_attest_is_left_and_said_once(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node, cluster = settings.model_copy(update={"home": tmp_path / "node"}), FakeCluster()
    ensure_key(node.home, Role.SUPERVISOR)
    key = load_signer(node.home, Role.SUPERVISOR).public_key
    for name in ("a", "b"):
        await register(settings, f"w-{name}", f"life-{name}", pod=f"uid-{name}", container="engine")
        await cluster.put(ended(f"containerd://{name}", f"uid-{name}", phase="Failed"))
    async with control_writer(settings, await read_registry(connection(settings)), Role.OPERATOR) as writer:
        await writer.append(Granted(public_key=key, roles=(Role.SUPERVISOR,), label="n", workers=("w-b",)))
    async with cluster.serving(), connected(address(cluster, tmp_path)) as client:
        attester = Attester(node, client, told=lambda *_: None)
        assert [await attester.once() for _ in range(2)] == [1, 0]
        await attester.stop()
    assert caplog.text.count("the end of w-a is not attested: the supervisor key") == 1
    assert "outside_grant" in caplog.text
    registry = await read_registry(connection(settings))
    assert (set(registry.exits), registry.ignored.total()) == ({("w-b", "life-b")}, 0)


async def test_a_wrong_token_is_named_and_so_is_a_cluster_that_is_away(
    settings: Settings, tmp_path: Path
) -> None:
    cluster = FakeCluster()
    async with cluster.serving():
        wrong = address(cluster, tmp_path, token="wrong")
        async with connected(wrong) as client:
            with pytest.raises(ClusterError) as refused:
                await client.list()
            assert refused.value.final
            assert "401 Unauthorized" in str(refused.value)
        options = ("--api", cluster.url, "--token-file", str(tmp_path / "token"), "--once")
        done = await asyncio.to_thread(_run, settings, "k8s", *options)
        assert (done.returncode, "401" in failure(done)) == (69, True)
    done = await asyncio.to_thread(_run, settings, "k8s", *options)
    assert done.returncode == 69
    done = await asyncio.to_thread(_run, settings, "k8s", "--once")
    assert (done.returncode, "no cluster" in failure(done)) == (78, True)


async def test_attested_exits_discharge_and_an_outside_inventory_is_held_against_the_registry(
    settings: Settings, tmp_path: Path
) -> None:
    await register(settings, "w0", "life-0", pod="uid-0", container="engine", container_id="containerd://0")
    await register(settings, "w1", "life-1")
    cluster = FakeCluster()
    await cluster.put(ended("containerd://0", "uid-0"))
    for name in ("w0", "w1", "w2"):
        await cluster.put(pod(f"vllm-{name}", f"u-{name}", labels={"kvledger.io/worker": name}))

    async def run(*arguments: str) -> dict[str, Any]:
        done = await asyncio.to_thread(_run, settings, *arguments, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    done = await asyncio.to_thread(
        kvledger, "delete", "--tenant", "default", "--json", home=settings.home, env=_env(settings)
    )
    number = json.loads(done.stdout)["number"]
    async with cluster.serving(), connected(address(cluster, tmp_path)) as client:
        attester = Attester(settings, client, told=lambda *_: None)
        assert await attester.once() == 1
        await attester.stop()
        (verdict,) = await audit_requests(settings, [number], wait_s=0)
        assert {one.subject for one in verdict.reasons if one.condition == "P2"} == {"w1/0/e-life-1"}
        refused = await asyncio.to_thread(_run, settings, "exit", "w1", "life-9", "--evidence", "x")
        assert "life-1" in failure(refused)
        await run("exit", "w1", "life-1", "--evidence", "host scrapped, ticket 88")
        (verdict,) = await audit_requests(settings, [number], wait_s=0)
        assert verdict.kind == "PROVEN"
        assert "membership: self-declared" in verdict.assumptions
        options = ("--api", cluster.url, "--token-file", str(tmp_path / "token"))
        stated = await run("inventory", "--k8s", *options, "--namespace", "llm")
        assert stated["members"] == 4
    (verdict,) = await audit_requests(settings, [number], wait_s=0)
    missing = {one.subject for one in verdict.reasons}
    # What runs under the names of those that have ended has not registered yet.
    assert (verdict.kind, missing) == ("PENDING", {"w0", "w1", "w2", "vllm-uid-0"})


async def test_a_stores_keys_are_listed_destroyed_and_discharge_it(settings: Settings) -> None:
    await register(settings, "w0", "life-0")

    async def run(*arguments: str) -> Any:
        done = await asyncio.to_thread(kvledger, *arguments, home=settings.home, env=_env(settings))
        return json.loads(done.stdout) if done.returncode == 0 else failure(done)

    async def judged() -> tuple[str, list[str]]:
        (verdict,) = await audit_requests(settings, [number], wait_s=0)
        return verdict.kind, [f"{one.reason}: {one.detail}" for one in verdict.reasons]

    declare = ("holder", "encrypted", "disk-1", "--every-domain", "--rest", "--key", "k-1", "--json")
    assert "nobody is enrolled" in await run(*declare)
    await run("holder", "enrol", "disk-1", "--tier", "disk", "--owner", "w0", "--json")
    assert [row["domain"] for row in await run(*declare)] == ["default", "(no domain)"]
    assert len(await run("holder", "encrypted", "disk-1", "--json")) == 2
    number = (await run("delete", "--tenant", "default", "--json"))["number"]
    await run("attest", "exit", "w0", "life-0", "--evidence", "host scrapped", "--json")
    destroyed = ("attest", "key-destroyed", "k-1", "--evidence", "ticket 88", "--json", "--ring")
    assert "nobody has listed ring vault" in await run(*destroyed, "vault")
    await run("key", "rings", "k-1", "--ring", "vault", "--ring", "safe", "--json")
    await run(*destroyed, "vault")
    kind, (why,) = await judged()
    assert (kind, "is not destroyed in safe" in why) == ("UNPROVABLE", True)
    await run(*destroyed, "safe")
    assert await judged() == ("PROVEN", [])
    await run("key", "rings", "k-1", "--ring", "laptop", "--json")
    kind, (why,) = await judged()
    assert (kind, "is not destroyed in laptop" in why) == ("UNPROVABLE", True)
    rows = await run("key", "rings", "k-1", "--json")
    assert [row["ring"] for row in rows if row["destroyed_at"] is None] == ["laptop"]


def _env(settings: Settings) -> dict[str, str]:
    return {"KVLEDGER_KAFKA": settings.kafka or "", "KVLEDGER_TOPIC_PREFIX": settings.topic_prefix}


def _run(settings: Settings, *arguments: str) -> Any:
    return kvledger("attest", *arguments, home=settings.home, env=_env(settings))
