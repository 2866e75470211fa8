"""The real `kvledger bridge` in a process of its own, and brokers and bridges that are killed under it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from typer.testing import CliRunner, Result

from events.errors import KvledgerError
from events.ids import Basis, Inventory, StreamStatus
from events.kafka.topic_admin import TopicAdmin
from events.topic import CONTROL
from kvledger.cli import make_app
from kvledger.failure import CommandError, ExitCode
from kvledger.stack.session import read_running
from kvledger.stack.state import Home, ServiceState
from tests.support.bridge_command import bridge, bridge_home
from tests.support.command import failure, kvledger
from tests.support.fake_engine import FakeEngine
from tests.support.hook_log import PARTITIONS, HookLog, until

VERIFIED = """
[content]
model = "fake"
revision = "r1"
tokenizer_revision = "t1"
attention = "full"
position_encoding = "rope"
kv_dtype = "bf16"
"""


@pytest.fixture
async def log(kafka: str, topic_prefix: str) -> AsyncIterator[HookLog]:
    async with HookLog(kafka, topic_prefix) as entered:
        yield entered


@pytest.fixture
def keys(home: Path) -> Path:
    return bridge_home(home)


def options(engine: FakeEngine, *more: str) -> list[str]:
    where = ["--endpoint", engine.endpoint, "--replay", engine.replay_endpoint]
    return ["--worker", "w0", "--model", "fake", *where, *more]


def tokens(*ids: int) -> list[int]:
    return [token for one in ids for token in [one] * 16]


def held(engine: FakeEngine) -> int:
    return sum(1 for blocks in engine.pool.blocks_of.values() if blocks)


async def confirmed(log: HookLog) -> None:
    """Beacons go on, as readers write them, until one is echoed that was written from now on."""
    first = await log.beacon()
    while not log.echoed("w0", first):
        await asyncio.sleep(0.1)
        await log.beacon()


async def test_a_bridge_carries_an_engine_into_the_log_and_ends_orderly(
    log: HookLog, keys: Path, tmp_path: Path
) -> None:
    profile = tmp_path / "fake.toml"
    profile.write_text(VERIFIED)
    async with FakeEngine(http_port=0) as engine:
        await engine.complete(tokens(1, 2))
        more = ("--profile", str(profile), "--engine-url", engine.http_url)
        async with bridge(log, keys, *options(engine, *more)) as running:
            opened = await running.opened()
            assert (opened["identity"], opened["missing"]) == ("verified", [])
            assert (opened["basis"], opened["history"], opened["deletion"]) == ("published", "whole", "reset")
            for number in range(60):
                await engine.complete(tokens(1, 2, number), generate=tokens(number))
            async with asyncio.timeout(30):
                await confirmed(log)
            assert len(log.copies("w0")) == held(engine)
            state = log.current("w0")
            assert state is not None
            assert {profile.missing for profile in state.profiles.values()} == {()}
            number = await log.delete("default")
            await until(lambda: log.discharged("w0", "default", number))
            assert await running.stop() == 0
            await until(lambda: state.status is StreamStatus.CLOSED)


async def test_without_a_profile_the_identity_is_unverified_and_says_what_is_missing(
    log: HookLog, keys: Path
) -> None:
    async with FakeEngine() as engine, bridge(log, keys, *options(engine)) as running:
        opened = await running.opened()
        assert opened["identity"] == "unverified"
        assert opened["missing"] == [
            "revision",
            "tokenizer_revision",
            "attention",
            "position_encoding",
            "kv_dtype",
        ]
        await engine.complete(tokens(1))
        await until(lambda: len(log.copies("w0")) == 1)
        state = log.current("w0")
        assert state is not None
        assert all(profile.missing for profile in state.profiles.values())


async def test_a_killed_bridge_is_followed_by_a_new_epoch_of_the_same_engine_life(
    log: HookLog, keys: Path
) -> None:
    async with FakeEngine() as engine:
        async with bridge(log, keys, *options(engine)) as running:
            await running.opened()
            await engine.complete(tokens(1, 2, 3))
            async with asyncio.timeout(30):
                await confirmed(log)
            remembered = keys / "bridge" / "w0-0.json"
            await until(remembered.exists)
            old = log.registry.current["w0", 0]
            await running.stop(signal.SIGKILL)
        await engine.complete(tokens(4))
        async with bridge(log, keys, *options(engine)) as running:
            await running.opened()
            async with asyncio.timeout(30):
                await confirmed(log)
            assert len(log.copies("w0")) == held(engine) == 4
            new = log.registry.current["w0", 0]
            assert new != old
            registered = log.registry.registrations
            assert registered[new].body.engine_life == registered[old].body.engine_life


async def test_a_stopped_bridge_that_goes_on_has_missed_nothing(log: HookLog, keys: Path) -> None:
    """Also where the engine's own buffer is too short for what came meanwhile."""
    async with FakeEngine(buffer_steps=10) as engine, bridge(log, keys, *options(engine)) as running:
        await running.opened()
        await engine.complete(tokens(1, 2, 3))
        async with asyncio.timeout(30):
            await confirmed(log)
        stream = log.registry.current["w0", 0]
        running.process.send_signal(signal.SIGSTOP)
        missed = await log.beacon()
        for number in range(60):
            await engine.complete(tokens(1, 2, number))
            await asyncio.sleep(0.08)
        assert not log.echoed("w0", missed)
        running.process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(30):
            await confirmed(log)
        assert log.registry.current["w0", 0] == stream
        assert len(log.copies("w0")) == held(engine)
        state = log.current("w0")
        assert state is not None
        assert state.status is StreamStatus.LIVE
        assert state.holders["gpu"].inventory is not Inventory.PARTIAL


async def test_of_two_bridges_with_one_identity_one_at_a_time_counts_and_says_so(
    log: HookLog, keys: Path
) -> None:
    async with FakeEngine() as engine:
        await engine.complete(tokens(1, 2))
        async with bridge(log, keys, *options(engine)) as first:
            await first.opened()
            async with asyncio.timeout(30):
                await confirmed(log)
            stream = log.registry.current["w0", 0]
            async with bridge(log, keys, *options(engine)) as second:
                await second.opened()
                # The first is superseded, and answers with an epoch of its own that supersedes the second.
                registered = log.registry.registrations
                await until(lambda: len(registered) >= 4)
                assert all(log.registry.superseded(key) for key in list(registered)[:-1])
                assert log.registry.superseded(stream)
                lives = {one.body.engine_life for one in registered.values()}
                assert len(lives) == 1
                second.process.send_signal(signal.SIGTERM)
                _, complaints = await asyncio.wait_for(second.process.communicate(), 30)
                assert b"is superseded: another hook speaks for w0/0" in complaints
            # Alone again, the first speaks for the worker.
            async with asyncio.timeout(60):
                await confirmed(log)
            await engine.complete(tokens(3))
            async with asyncio.timeout(60):
                await confirmed(log)
            assert len(log.copies("w0")) == held(engine) == 3


async def test_what_goes_wrong_with_an_engine_is_counted_on_the_status_line(log: HookLog, keys: Path) -> None:
    async with FakeEngine() as engine, bridge(log, keys, *options(engine)) as running:
        opened = await running.opened()
        assert opened["history"] == "nothing received yet"
        await engine.complete(tokens(1))
        engine.faults.lose_publications = 2
        await engine.complete(tokens(2))
        await engine.complete(tokens(3))
        await engine.publish_raw(b"garbage")
        await engine.store(tokens(5), parent=b"nobody's")
        async with asyncio.timeout(30):
            while running.announced[-1].get("counts", {}).get("orphans") != 1:
                assert running.process.stdout is not None
                running.announced.append(json.loads(await running.process.stdout.readline()))
        counts = running.announced[-1]["counts"]
        assert (counts["lost_messages"], counts["unreadable"], counts["inventory"]) == (2, 1, "partial")


async def test_one_process_serves_several_engines_from_a_file(
    log: HookLog, keys: Path, tmp_path: Path
) -> None:
    async with FakeEngine() as first, FakeEngine(rank=1) as second:
        file = tmp_path / "engines.toml"
        file.write_text(
            "".join(
                f'[[engine]]\nworker = "w0"\nmodel = "fake"\nrank = {rank}\n'
                f'endpoint = "{engine.endpoint}"\nreplay = "{engine.replay_endpoint}"\n'
                for rank, engine in enumerate((first, second))
            )
        )
        async with bridge(log, keys, "--config", str(file)) as running:
            await running.opened()
            await running.opened()
            await first.complete(tokens(1))
            await second.complete(tokens(1, 2))
            await until(lambda: len(log.copies("w0", 0)) == 1 and len(log.copies("w0", 1)) == 2)
            beacon = await log.beacon()
            await until(lambda: log.echoed("w0", beacon, 0) and log.echoed("w0", beacon, 1))
            assert log.pulses["w0", 1].basis is Basis.PUBLISHED


async def test_a_killed_broker_costs_no_record(
    log: HookLog, keys: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (stack_home,) = tmp_path_factory.getbasetemp().glob("stack[0-9]*/home")
    async with FakeEngine(blocks=2_000) as engine, bridge(log, keys, *options(engine)) as running:
        await running.opened()
        await engine.complete(tokens(1, 2, 3))
        async with asyncio.timeout(30):
            await confirmed(log)
        # The session's own, which its supervisor starts again; what is asked of it next waits for that.
        broker = _kafka(stack_home)
        os.kill(broker, signal.SIGKILL)
        for number in range(200):
            await engine.complete(tokens(1, 2, number))
            await asyncio.sleep(0.005)
        await until(lambda: _kafka(stack_home) not in (0, broker), 150)
        for number in range(200, 300):
            await engine.complete(tokens(1, 2, number))
        await until(lambda: len(log.copies("w0")) == held(engine), 60)
        assert held(engine) > 250
        state = log.current("w0")
        assert state is not None
        assert state.status is StreamStatus.LIVE
        assert log.registry.current["w0", 0] == state.key
        assert await running.stop() == 0


def _kafka(home: Path) -> int:
    """pid of the ready broker; 0 while there is none."""
    for record in read_running(Home(home)).services:
        if record.name == "kafka" and record.state is ServiceState.READY and record.process is not None:
            return record.process.pid
    return 0


async def test_a_bridge_whose_control_log_was_cut_ends_with_one_line(log: HookLog, keys: Path) -> None:
    async with FakeEngine() as engine, bridge(log, keys, *options(engine)) as running:
        await running.opened()
        admin = AIOKafkaAdminClient(bootstrap_servers=log.bootstrap)
        await admin.start()
        try:
            await admin.delete_topics([log.connection.topic(CONTROL)])
        finally:
            await admin.close()
        await made_again(log)
        _, complaints = await asyncio.wait_for(running.process.communicate(), 60)
        assert running.process.returncode == ExitCode.UNAVAILABLE
        assert b"Traceback" not in complaints
        failures = [line for line in complaints.decode().splitlines() if line.startswith("kvledger: ")]
        assert len(failures) == 1
        assert "the log was cut: kv.control ends at 0" in failures[0]


async def made_again(log: HookLog) -> None:
    """Deleting a topic takes the broker a moment, during which it can't be made."""
    async with asyncio.timeout(30):
        while True:
            try:
                await TopicAdmin(log.connection, partitions=PARTITIONS).ensure()
            except (KafkaError, KvledgerError):
                await asyncio.sleep(0.1)
            else:
                return


def in_process(home: Path, *arguments: str) -> Result:
    """`kvledger ARGUMENTS` without a process of its own, for what ends before anything is started."""
    return CliRunner(env={"KVLEDGER_HOME": str(home)}).invoke(make_app(), arguments)


def refused(home: Path, *arguments: str) -> str:
    error = in_process(home, *arguments).exception
    assert isinstance(error, CommandError)
    return error.message


def test_mistakes_on_the_command_line_are_named_in_one_line(home: Path, tmp_path: Path) -> None:
    assert "--worker, --model and --endpoint" in refused(home, "bridge")
    broken = tmp_path / "broken.toml"
    broken.write_text("[[engine]]\nworker = 'w0'\n")
    assert "engine.0.model" in refused(home, "bridge", "--config", str(broken))
    bad_name = ("--worker", "two words", "--model", "m", "--endpoint", "tcp://127.0.0.1:1")
    assert "worker" in refused(home, "bridge", *bad_name)
    good = ("--worker", "w0", "--model", "m", "--endpoint", "tcp://127.0.0.1:1")
    assert "key" in failure(kvledger("bridge", *good, home=home))


def test_a_profile_is_written_to_be_edited_and_checked(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    made = in_process(home, "profile", "init", "--model", "tiny", "--file", str(file))
    assert made.exit_code == 0, made.output
    assert "kv_dtype" in made.stdout
    checked = kvledger("profile", "check", str(file), "--json", home=home)
    assert (checked.returncode, json.loads(checked.stdout)["verified"]) == (1, False)
    assert "exists" in refused(home, "profile", "init", "--model", "m", "--file", str(file))
    text = file.read_text()
    for name in ("revision", "tokenizer_revision", "attention", "position_encoding", "kv_dtype"):
        text = text.replace(f"# {name} =", f"{name} =")
    file.write_text(text)
    assert in_process(home, "profile", "check", str(file)).exit_code == 0
    file.write_text("[content]\nmodell = 'x'\n")
    assert "content.modell" in refused(home, "profile", "check", str(file))
