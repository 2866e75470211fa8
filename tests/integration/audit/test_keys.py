"""`kvledger key`, `hold` and `retention` on a real log: what they write is obeyed, and proofs go on."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from events.fold.registry import Registry
from events.hooks.registration import Registrar, RegistrationError
from events.ids import Role
from events.kafka.control import ControlTail, ControlWriter
from events.model.control import DomainCreated, Registered
from events.signing import verify
from kvledger.command.audit import audit_requests
from kvledger.control import connection, read_registry, wall_ms
from kvledger.engine_agent import ExitAttester
from kvledger.keyfile import ensure_key, key_path, load_signer, public_key_path
from kvledger.settings import Settings
from tests.support.command import failure, kvledger
from tests.support.heedless import Heedless
from tests.support.live_log import until
from tests.support.simulation import prepared_log


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, home: Path, kafka: str, topic_prefix: str) -> Settings:
    return prepared_log(monkeypatch, home, kafka, topic_prefix)


class Console:
    """The command line on one log."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    async def run(self, *arguments: str) -> Any:
        done = await self._run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    async def refused(self, *arguments: str) -> str:
        return failure(await self._run(*arguments))

    async def _run(self, *arguments: str) -> Any:
        at = self.settings
        env = {"KVLEDGER_KAFKA": at.kafka or "", "KVLEDGER_TOPIC_PREFIX": at.topic_prefix}
        return await asyncio.to_thread(kvledger, *arguments, home=at.home, env=env)


async def test_a_rotated_key_counts_and_the_old_one_no_longer_does(settings: Settings) -> None:
    console = Console(settings)
    number = (await console.run("delete", "--tenant", "default"))["number"]
    (verdict,) = await audit_requests(settings, [number], wait_s=0)
    assert verdict.kind == "PROVEN"
    old = load_signer(settings.home, Role.AUDITOR)
    done = await console.run("key", "rotate", "auditor")
    new = load_signer(settings.home, Role.AUDITOR)
    assert (done["key"], done["revoked"]) == (new.id, old.id)
    assert public_key_path(settings.home, Role.AUDITOR).read_text().strip() == new.public_key.hex()
    (verdict,) = await audit_requests(settings, [number], wait_s=0)
    assert verdict.kind == "PROVEN"
    rows = {row["key"]: row for row in await console.run("key", "list")}
    assert rows[old.id]["revoked_at"] is not None
    assert (rows[new.id]["revoked_at"], rows[new.id]["here"]) == (None, "auditor")

    # Broken off behind its grant, a rotation goes on with the same key; a lost key needs only its public half.
    seed = "17" * 32
    path = key_path(settings.home, Role.CONTROL)
    path.with_suffix(".next").write_text(seed + "\n")
    lost = load_signer(settings.home, Role.CONTROL)
    path.unlink()
    assert "can't be read" in await console.refused("key", "rotate", "control")
    done = await console.run("key", "rotate", "control", "--lost")
    assert done["revoked"] == lost.id
    assert path.read_text().strip() == seed
    assert not [one for one in path.parent.iterdir() if one.suffix in (".next", ".old")]
    assert (await console.run("delete", "--tenant", "default"))["number"] > number

    # What the lost key signs from now on doesn't count.
    registry = await read_registry(connection(settings))
    writer = ControlWriter(
        connection(settings), Heedless(registry.log), signers={Role.CONTROL: lost}, wall_ms=wall_ms
    )
    await writer.start()
    await writer.append(DomainCreated(domain="stolen", tenant="thief"))
    await writer.stop()
    assert "stolen" not in (await read_registry(connection(settings))).domains
    assert "can't be revoked" in await console.refused(
        "key", "revoke", load_signer(settings.home, Role.OPERATOR).id
    )
    assert "revoked by" in await console.refused("key", "revoke", lost.id)


async def test_holds_and_policies_are_placed_listed_and_released(settings: Settings) -> None:
    console = Console(settings)
    place = ("hold", "place", "case-7", "--reason", "court")
    assert "name either" in await console.refused(*place)
    assert "no tenant nobody" in await console.refused(*place, "--tenant", "nobody")
    placed = await console.run(*place, "--tenant", "default", "--idempotency-key", "k")
    again = await console.run(*place, "--tenant", "default", "--idempotency-key", "k")
    assert placed == again
    assert "already" in await console.refused(*place, "--tenant", "default")
    (row,) = await console.run("hold", "list")
    assert (row["hold"], row["tenant"], row["reason"], row["placed_by"]) == (
        "case-7",
        "default",
        "court",
        "cli",
    )
    await console.run("hold", "release", "case-7")
    assert await console.run("hold", "list") == []
    assert "no hold" in await console.refused("hold", "release", "case-7")
    keep = ("retention", "set", "--tenant", "default")
    assert "--none" in await console.refused(*keep)
    assert "--retain-hours takes 0.017" in await console.refused(*keep, "--retain-hours", "0.001")
    await console.run(*keep, "--retain-hours", "24", "--prove-within-hours", "4")
    (row,) = await console.run("retention", "list")
    assert (row["tenant"], row["retain_s"], row["prove_within_s"]) == ("default", 86_400, 14_400)
    await console.run(*keep, "--none")
    assert await console.run("retention", "list") == []


async def test_a_nodes_key_counts_for_its_own_workers_alone(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    console = Console(settings)
    node = Console(settings.model_copy(update={"home": tmp_path / "node"}))
    made = await node.run("key", "make", "enrolment")
    assert await node.run("key", "make", "enrolment") == made
    for role in (Role.CONTROL, Role.SUPERVISOR):  # which nobody grants
        ensure_key(node.settings.home, role)
    grant = ("key", "grant", made["public_key"], "--worker", "gpu-7", "--worker", "node7-*")
    assert "only the roles enrolment and supervisor" in await console.refused(*grant, "--role", "control")
    assert "--worker" in await console.refused(*grant, "--role", "enrolment", "--worker", "*")
    assert (await console.run(*grant, "--role", "enrolment"))["key"] == made["key"]
    rows = {row["key"]: row for row in await console.run("key", "list")}
    assert (rows[made["key"]]["workers"], rows[made["key"]]["stores"]) == (["gpu-7", "node7-*"], None)

    # What would be ignored is not even written.
    end = (await read_registry(connection(settings))).next_offset
    why = await node.refused("holder", "enrol", "disk-1", "--tier", "disk", "--owner", "gpu-7")
    assert "outside_grant" in why
    limit = ("limit", "set", "--tenant", "default", "--tier", "gpu", "--unit", "blocks", "--hard", "0")
    assert "may not say this (unknown_signer); nothing was written" in await node.refused(*limit)
    signer = load_signer(node.settings.home, Role.ENROLMENT)
    tail = ControlTail(connection(settings), Registry(verify), monotonic_ns=time.monotonic_ns)
    await tail.catch_up()
    out, heedless = (
        ControlWriter(connection(settings), fold, signers={Role.ENROLMENT: signer}, wall_ms=wall_ms)
        for fold in (tail.registry, Heedless(tail.registry.log))
    )
    await out.start()
    await heedless.start()
    following = asyncio.create_task(tail.run())
    registrar = Registrar(out, tail)
    attester = ExitAttester(node.settings, tail.registry)
    try:
        with pytest.raises(RegistrationError, match=f"gpu-8/0 is not .* key {signer.id} .*outside_grant"):
            await registrar.register("gpu-8", 0, "life", endpoint=None, model=None)
        attester.of("gpu-7")("life", "process 1 ended")
        await until(lambda: "isn't attested yet" in caplog.text)
        assert "may not say this (unknown_signer); nothing was written" in caplog.text
        assert (await read_registry(connection(settings))).next_offset == end
        epoch = await registrar.register("node7-b", 0, "life", endpoint=None, model=None)
        assert (epoch.stream.worker, epoch.epoch_no) == ("node7-b", end)

        # A hook that writes it all the same takes nothing over, and the log is no longer one of good signatures.
        theirs = await registrar.register("gpu-7", 0, "life", endpoint=None, model=None)
        forged = Registered(
            worker="w9", rank=0, epoch="e", engine_life="l", public_key=signer.public_key, partition=0
        )
        ignored = (await heedless.append(forged)).offset
        registry = await read_registry(connection(settings))
        assert registry.ignored == {"outside_grant": 1}
        assert {stream.worker for stream in registry.registrations} == {"node7-b", theirs.stream.worker}
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await attester.stop()
        await heedless.stop()
        await out.stop()
        await tail.stop()
    number = (await console.run("delete", "--tenant", "default"))["number"]
    (verdict,) = await audit_requests(settings, [number], wait_s=0)
    assert ("signature_invalid", f"kv.control/{ignored}", "outside_grant") in [
        (one.reason, one.subject, one.detail) for one in verdict.reasons
    ]

    # A rotation keeps the binding.
    mine = public_key_path(settings.home, Role.ENROLMENT).read_text().strip()
    await console.run("key", "grant", mine, "--role", "enrolment", "--worker", "gpu-1", "--store", "disk-*")
    key = (await console.run("key", "rotate", "enrolment"))["key"]
    rows = {row["key"]: row for row in await console.run("key", "list")}
    assert (rows[key]["workers"], rows[key]["stores"]) == (["gpu-1"], ["disk-*"])
