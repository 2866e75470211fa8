"""A bridge beside an engine with an agent, into a real log: its basis, deletions of single blocks, healed doubt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from events.hooks import agent_link
from events.hooks.agent import Agent
from events.hooks.agent_client import AgentClient
from events.hooks.agent_link import AgentLink
from events.hooks.bridge import Bridge
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_process import EngineProcess
from events.hooks.engine_source import NoAnswer
from events.hooks.hook import Hook, HookPace
from events.hooks.host import HostPace
from events.hooks.zmq_source import ZmqSource
from events.identity import make_salt
from events.ids import Basis, Capability, CopyState, Inventory, StreamStatus
from kvledger.engine_agent import learned
from tests.support.engine_with_agent import agent, core, modules, path, prompt, ran
from tests.support.fake_core import FakeCore, Request
from tests.support.hook_log import HookLog, until
from tests.support.hosted_bridge import confirmed, hosted
from tests.support.log import PROFILE

__all__ = ["agent", "core", "modules", "path"]
PACE = HostPace(pulse_s=0.1, hook=HookPace(confirm_timeout_s=1.0))


@pytest.fixture
async def log(kafka: str, topic_prefix: str) -> AsyncIterator[HookLog]:
    async with HookLog(kafka, topic_prefix) as entered:
        yield entered


@asynccontextmanager
async def bridged(log: HookLog, core: FakeCore, path: str) -> AsyncIterator[Hook]:
    """A bridge as `kvledger bridge --agent` composes it."""
    client = AgentClient(path)
    source = ZmqSource(core.publisher.endpoint, core.publisher.replay_endpoint)
    bridge = Bridge(source, agent=AgentLink(client))

    def config(bridge: Bridge) -> EngineConfig:
        return learned(EngineConfig(content=PROFILE), bridge.hello)

    try:
        async with hosted(log, source, bridge, config, pace=PACE) as hook:
            yield hook
    finally:
        client.close()


def salt(log: HookLog, domain: str) -> str:
    return make_salt(log.keyring[domain].salt_key, domain)


def resident(core: FakeCore) -> int:
    return len(core.pool.cached_block_hash_to_block._cache)


async def test_the_log_says_engine_and_the_index_is_the_pool_even_after_an_idle_reset(
    log: HookLog, core: FakeCore, agent: Agent, path: str
) -> None:
    await ran(core, "a", prompt(1, 2))
    async with bridged(log, core, path):
        await ran(core, "b", prompt(1, 3))
        await confirmed(log)
        assert len(log.copies("w0")) == resident(core) == 3
        state = log.current("w0")
        assert state is not None
        assert (state.removal, state.admission_known) == (Capability.EVICT_BLOCKS, True)
        await until(lambda: log.pulses["w0", 0].basis is Basis.ENGINE)
        load = log.pulses["w0", 0].load
        assert load is not None
        assert core.on_thread(core.pool.reset_prefix_cache)
        await confirmed(log)
        assert log.copies("w0") == set()


async def test_one_tenant_is_deleted_and_the_other_stays_warm(
    log: HookLog, core: FakeCore, agent: Agent, path: str
) -> None:
    for domain in ("acme", "beta"):
        await ran(core, domain, prompt(1, 2, 3), cache_salt=salt(log, domain))
    async with bridged(log, core, path):
        await confirmed(log)
        assert len(log.copies("w0")) == 6
        number = await log.delete("acme")
        await until(lambda: log.discharged("w0", "acme", number))
        standing = log.standing("w0", "acme", number)
        assert standing is not None
        assert standing.removed == 3
        assert (await ran(core, "again", prompt(1, 2, 3), cache_salt=salt(log, "acme"))).hits == 0
        assert (await ran(core, "warm", prompt(1, 2, 3), cache_salt=salt(log, "beta"))).hits == 3
        await confirmed(log)
        assert len(log.copies("w0")) == resident(core) == 6
        assert log.discharged("w0", "acme", number)


async def test_the_ack_waits_for_a_request_that_holds_what_is_deleted(
    log: HookLog, core: FakeCore, agent: Agent, path: str
) -> None:
    core.step_s = 0.01
    async with bridged(log, core, path):
        await confirmed(log)
        running = core.add(Request("a", prompt(1, 2), outputs=100_000, cache_salt=salt(log, "acme")))
        await until(lambda: len(running.block_hashes) > 3)
        number = await log.delete("acme")
        await until(lambda: resident(core) == 0)
        held = len(running.block_hashes)
        await until(lambda: len(running.block_hashes) > held + 3)
        await confirmed(log)
        assert not log.discharged("w0", "acme", number)
        assert resident(core) == 0
        core.on_thread(lambda: core.scheduler.finish("a"))
        await until(lambda: log.discharged("w0", "acme", number))
        assert log.copies("w0") == set()


async def test_what_a_loss_left_in_doubt_is_known_again_without_a_clear(
    log: HookLog, core: FakeCore, agent: Agent, path: str
) -> None:
    await ran(core, "a", prompt(1, 2))
    async with bridged(log, core, path) as hook:
        await confirmed(log)
        hook.lost(5, 9)
        await until(lambda: not hook.doubtful)
        await confirmed(log)
        state = log.current("w0")
        assert state is not None
        await until(lambda: state.holders["gpu"].inventory is Inventory.KNOWN)
        assert {a.state for _, a in state.copies["gpu", 0].values()} == {CopyState.COMMITTED}


async def test_an_agent_that_ends_leaves_a_stream_that_says_so(
    log: HookLog, core: FakeCore, agent: Agent, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_link, "LOST_S", 0.5)
    await ran(core, "a", prompt(1, 2))
    async with bridged(log, core, path) as hook:
        await confirmed(log)
        assert log.pulses["w0", 0].basis is Basis.ENGINE
        first = hook.stream
        agent.stop()
        await until(lambda: hook.stream not in (None, first))
        await confirmed(log)
        assert log.pulses["w0", 0].basis is Basis.PUBLISHED
        state = log.current("w0")
        assert state is not None
        assert (state.removal, state.admission_known) == (Capability.NONE, False)
        assert len(log.copies("w0")) == 2


async def test_an_engine_seen_to_end_is_closed_and_only_who_answers_after_it_is_registered(
    log: HookLog, core: FakeCore, agent: Agent, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ran(core, "a", prompt(1, 2))
    async with bridged(log, core, path) as hook:
        await confirmed(log)
        first = hook.stream
        assert first is not None
        life = hook.engine_life
        with monkeypatch.context() as patched:
            patched.setattr(ZmqSource, "confirm", unanswered)
            patched.setattr(EngineProcess, "ended", lambda _: True)
            await until(lambda: log.state(first).status is StreamStatus.CLOSED)
            assert log.state(first).engine_ended
            number = await log.delete("acme")
            await until(lambda: hook.installed >= number)
            assert hook.stream is None
            assert hook.reporting.why_not_open.startswith("the engine has ended")
            assert {one.body.engine_life for one in log.registry.registrations.values()} == {life}
        await until(lambda: hook.stream is not None)
        await ran(core, "b", prompt(3))
        await confirmed(log)
        # In truth it is the same engine: its history is asked for from the first record on.
        assert len(log.copies("w0")) == 3
        assert {one.body.engine_life for one in log.registry.registrations.values()} == {
            life,
            hook.engine_life,
        }


async def unanswered(source: ZmqSource, timeout_s: float) -> NoAnswer:
    """A replay socket behind which nobody is."""
    del source, timeout_s
    return NoAnswer(())
