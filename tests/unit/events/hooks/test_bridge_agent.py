"""A bridge beside an engine with an agent: its basis, what heals doubt, removals, and the way back without one."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from events.fold.registry import Registry
from events.hooks import agent_link
from events.hooks.agent import Agent, attach
from events.hooks.agent_client import AgentClient
from events.hooks.agent_link import AgentLink
from events.hooks.agent_wire import Hello
from events.hooks.bridge import Bridge
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import EngineBatch, EngineHash
from events.hooks.engine_port import Confirmed, Unanswered
from events.hooks.engine_process import hold, port_of
from events.hooks.engine_source import EngineRestarted, RestartSign
from events.hooks.engine_stream import EngineStream
from events.hooks.obligation import Obligations
from events.hooks.zmq_source import ZmqSource
from events.ids import Basis, Capability
from events.signing import verify
from tests.support.engine_with_agent import WAIT_S, agent, core, modules, names, path, prompt, ran, until
from tests.support.fake_core import FakeCore, Request
from tests.support.hook_log import ring
from tests.support.log import PROFILE

__all__ = ["agent", "core", "modules", "path"]
pytestmark = pytest.mark.usefixtures("modules")
LONG_S = 30.0


class Holding:
    """A hook that holds what its engine holds, and remembers how each batch was dated."""

    def __init__(self) -> None:
        self.installed = 100
        self.log = "log-1"
        self.obligations = Obligations(Registry(verify), ())
        config = EngineConfig(content=PROFILE, default_domain="acme")
        self.stream = EngineStream("w0", 0, ring(), config)
        self.dated: dict[int, int | None] = {}
        self.ways: list[tuple[Capability, bool]] = []
        self.inspections = 0
        self.lives: list[str] = []
        self.ended = 0

    def feed(self, batch: EngineBatch, admitted_after: int | None = None) -> None:
        self.dated[batch.engine_seq] = admitted_after
        self.stream.translate(batch, admitted_after)

    def lost(self, first: int, last: int | None) -> None:
        self.stream.lost(first, last)

    def unknown(self, kind: str, length: int) -> None:
        raise AssertionError(kind, length)

    def restarted(self, engine_life: str, *, born_after: int | None = None) -> None:
        self.lives.append(engine_life)
        self.stream.open(engine_life)

    def engine_ended(self) -> None:
        self.ended += 1

    @property
    def doubtful(self) -> bool:
        return self.stream.doubtful()

    def inspected(self, resident: Mapping[int, Mapping[EngineHash, int]]) -> None:
        self.inspections += 1
        self.stream.inspected(resident)

    def reachable_by(self, removal: Capability, *, admission_known: bool) -> None:
        if self.stream.reachable_by(removal, admission_known=admission_known):
            self.ways.append((removal, admission_known))

    def held(self) -> int:
        """Copies with an id."""
        return self.stream.checksums()[0].count if self.stream.checksums() else 0


class Side:
    def __init__(self, bridge: Bridge, hook: Holding, client: AgentClient) -> None:
        self.bridge = bridge
        self.hook = hook
        self.client = client

    async def trusted(self) -> None:
        assert await self.bridge.confirm(LONG_S) == Confirmed(Basis.PUBLISHED)
        assert self.bridge.capability is Capability.EVICT_BLOCKS


@asynccontextmanager
async def beside(core: FakeCore, path: str, *, ports: bool = True) -> AsyncIterator[Side]:
    client = AgentClient(path)
    known = (port_of(core.publisher.endpoint), port_of(core.publisher.replay_endpoint))
    async with ZmqSource(core.publisher.endpoint, core.publisher.replay_endpoint) as source:
        link = AgentLink(client, ports=known if ports else (None, None))
        bridge = Bridge(source, agent=link)
        attachment = await bridge.attach(LONG_S)
        hook = Holding()
        hook.stream.open(attachment.life, from_birth=attachment.from_birth)
        bridge.bind(hook, attachment)
        yield Side(bridge, hook, client)
        client.close()


async def test_an_agent_found_while_attaching_is_trusted_and_vouches_for_the_engine_itself(
    core: FakeCore, agent: Agent, path: str
) -> None:
    await ran(core, "a", prompt(1, 2))
    async with beside(core, path) as side:
        assert side.bridge.capability is Capability.EVICT_BLOCKS
        assert await side.bridge.confirm(LONG_S) == Confirmed(Basis.ENGINE, upto=0)
        assert side.hook.held() == 2


async def test_an_agent_that_comes_later_is_trusted_once_replay_has_confirmed_again(
    core: FakeCore, path: str
) -> None:
    await ran(core, "a", prompt(1, 2))
    async with beside(core, path) as side:
        assert await side.bridge.confirm(LONG_S) == Confirmed(Basis.PUBLISHED)
        assert side.bridge.capability is Capability.NONE
        agent = attach(core, path)
        assert agent is not None
        side.client._retry_s = 0.0
        await side.trusted()
        answer = await side.bridge.confirm(LONG_S)
        assert isinstance(answer, Confirmed)
        assert answer.basis is Basis.ENGINE
        agent.stop()


async def test_an_engine_that_has_published_nothing_is_confirmed_empty_by_its_agent(
    core: FakeCore, agent: Agent, path: str
) -> None:
    async with beside(core, path) as side:
        assert await side.bridge.confirm(LONG_S) == Confirmed(Basis.ENGINE, upto=-1)
        await ran(core, "a", prompt(1, 2))
        assert await side.bridge.confirm(LONG_S) == Confirmed(Basis.ENGINE, upto=0)
        assert side.hook.held() == 2


async def test_a_reset_of_an_idle_engine_is_known_at_the_next_confirmation(
    core: FakeCore, agent: Agent, path: str
) -> None:
    await ran(core, "a", prompt(1, 2))
    async with beside(core, path) as side:
        assert side.hook.held() == 2
        assert core.on_thread(core.pool.reset_prefix_cache)
        assert await side.bridge.confirm(LONG_S) == Confirmed(Basis.ENGINE, upto=1)
        assert side.hook.held() == 0


async def test_batches_are_dated_by_the_word_before_them_and_never_later(
    core: FakeCore, agent: Agent, path: str
) -> None:
    await ran(core, "a", prompt(1))
    async with beside(core, path) as side:
        assert await side.bridge.confirm(LONG_S) == Confirmed(Basis.ENGINE, upto=0)
        core.step_s = 0.01
        old = core.add(Request("old", prompt(2), outputs=10_000))
        await until(lambda: old.num_computed_tokens > 0)
        side.hook.installed = 200
        assert isinstance(await side.bridge.confirm(LONG_S), Confirmed)
        await ran(core, "young", prompt(3))
        assert isinstance(await side.bridge.confirm(LONG_S), Confirmed)
        assert side.bridge.oldest_running() == 100
        core.on_thread(lambda: core.scheduler.finish("old"))
        assert isinstance(await side.bridge.confirm(LONG_S), Confirmed)
        assert side.bridge.oldest_running() is None
        await ran(core, "new", prompt(4))
        assert isinstance(await side.bridge.confirm(LONG_S), Confirmed)
        dated = [side.hook.dated[seq] for seq in sorted(side.hook.dated)]
        assert (dated[0], dated[1], dated[-1]) == (None, 100, 200)
        assert sorted(dated[1:], key=lambda one: one or 0) == dated[1:]


async def test_doubt_after_a_loss_ends_with_a_look_at_the_pool(
    core: FakeCore, agent: Agent, path: str
) -> None:
    await ran(core, "a", prompt(1, 2))
    async with beside(core, path) as side:
        side.hook.lost(7, 9)
        assert side.hook.doubtful
        running = asyncio.create_task(side.bridge.run())
        await until(lambda: not side.hook.doubtful)
        running.cancel()
        assert (side.hook.held(), side.hook.inspections) == (2, 1)
        assert side.hook.stream.inventory_known()


async def test_a_copy_that_an_event_left_in_doubt_is_settled_by_the_pool(
    core: FakeCore, agent: Agent, path: str
) -> None:
    await ran(core, "a", prompt(1, 2))
    await ran(core, "twice", prompt(1, 2), skip_reading=True)
    async with beside(core, path) as side:
        assert side.hook.held() == 2
        # One of two copies of each leaves, which events can't tell from a hit announced again.
        for block in core.pool.blocks[:4]:
            core.on_thread(lambda number=block.block_id: core.pool.evict_blocks({number}))
        assert isinstance(await side.bridge.confirm(LONG_S), Confirmed)
        assert side.hook.doubtful
        running = asyncio.create_task(side.bridge.run())
        await until(lambda: not side.hook.doubtful)
        running.cancel()
        kept = {key[:-4] for key in core.pool.cached_block_hash_to_block._cache}
        assert side.hook.held() == len(kept)


def unheard(core: FakeCore) -> None:
    """One block leaves and another one comes, and the engine's events of both are lost."""
    core.pool.evict_blocks({1})
    blocks = core.pool.get_new_blocks(1)
    core.pool.cache_full_blocks(Request("ghost", prompt(5)), blocks, 0, 1, 16, 0)
    core.pool.free_blocks(blocks)
    core.pool.kv_event_queue.clear()


async def test_a_pool_that_holds_what_nobody_heard_of_is_shown_as_orphans_and_what_is_gone_is_gone(
    core: FakeCore, agent: Agent, path: str
) -> None:
    await ran(core, "a", prompt(1, 2))
    async with beside(core, path) as side:
        core.on_thread(lambda: unheard(core))
        side.hook.lost(1, None)
        assert isinstance(await side.bridge.confirm(LONG_S), Confirmed)
        await side.bridge._tend_agent(asyncio.get_running_loop().time())
        assert side.hook.held() == 1
        assert side.hook.stream.orphan_counts() == (1, 0)


async def test_removal_is_told_before_the_engine_says_evicted(
    core: FakeCore, agent: Agent, path: str
) -> None:
    doomed = await ran(core, "a", prompt(1, 2))
    await ran(core, "b", prompt(3))
    async with beside(core, path) as side:
        running = asyncio.create_task(side.bridge.run())
        hashes = [EngineHash(name) for name in names(doomed)]
        result = await side.bridge.remove(hashes, WAIT_S, request=7)
        assert result.removed == tuple(hashes)
        translation = side.hook.stream.removed(hashes, 7)
        (invalidated,) = translation.parts["acme"]
        assert invalidated.type == "block_invalidated"
        assert len(invalidated.ids) == 2
        assert isinstance(await side.bridge.confirm(LONG_S), Confirmed)
        assert side.hook.held() == 1
        running.cancel()


async def test_without_its_agent_a_bridge_confirms_by_replay_and_says_so_after_a_while(
    core: FakeCore, agent: Agent, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_link, "LOST_S", 0.2)
    await ran(core, "a", prompt(1, 2))
    async with beside(core, path) as side:
        running = asyncio.create_task(side.bridge.run())
        await until(lambda: side.hook.ways == [(Capability.EVICT_BLOCKS, True)])
        agent.stop()
        await until(lambda: not side.client.connected)
        assert await side.bridge.confirm(LONG_S) == Confirmed(Basis.PUBLISHED)
        refused = await side.bridge.remove([EngineHash(b"x" * 8)], WAIT_S, request=1)
        assert refused.refused == "engine_error"
        await until(lambda: side.hook.ways[-1] == (Capability.NONE, False))
        assert side.bridge.capability is Capability.NONE
        running.cancel()


async def test_an_engine_that_is_stuck_in_a_step_is_not_confirmed_by_its_agent(
    core: FakeCore, agent: Agent, path: str
) -> None:
    await ran(core, "a", prompt(1))
    async with beside(core, path) as side:
        going_on = threading.Event()

        def standing_still() -> None:
            going_on.wait(WAIT_S)

        core.scheduler.step = standing_still  # type: ignore[method-assign]
        stuck = core.add(Request("b", prompt(2)))
        await until(lambda: "b" in core.scheduler.requests)
        answer = await side.bridge.confirm(0.5)
        assert answer in (Confirmed(Basis.PUBLISHED), Unanswered())
        assert not stuck.num_computed_tokens
        del core.scheduler.step
        going_on.set()


async def test_another_engines_agent_is_not_believed(
    core: FakeCore, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeCore() as other:
        agent = attach(other, path)
        assert agent is not None
        async with beside(core, path) as side:
            assert side.bridge.capability is Capability.NONE
            await ran(core, "a", prompt(1))
            assert await side.bridge.confirm(LONG_S) == Confirmed(Basis.PUBLISHED)
            assert "another engine's" in caplog.text
        agent.stop()


def test_a_process_is_held_until_it_ends_and_no_other_passes_for_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
    hello = Hello(1, 1, "life", process.pid, started, boot, "0.32.0", 0, 255, [])
    held, let_go = hold(hello), hold(hello)
    assert held is not None
    assert let_go is not None
    assert not held.ended()
    let_go.close()
    assert not let_go.ended()
    for other in (
        Hello(1, 1, "life", process.pid, "1", boot, "", 0, 255, []),
        Hello(1, 1, "life", process.pid, started, "other boot", "", 0, 255, []),
        Hello(1, 1, "life", 1 << 22, started, boot, "", 0, 255, []),
    ):
        assert hold(other) is None
    process.kill()
    process.communicate(timeout=10)
    assert held.ended()
    assert held.ended()
    assert not let_go.ended()


async def test_the_end_of_the_process_ends_the_life_with_evidence_and_makes_up_no_other(
    core: FakeCore, agent: Agent, path: str
) -> None:
    await ran(core, "a", prompt(1, 2))
    attested: list[tuple[str, str]] = []
    async with beside(core, path) as side:
        life = side.bridge._intake.life
        left_behind = prompt(7)
        await ran(core, "b", left_behind)
        await ended(side, attested)
        assert [one[0] for one in attested] == [life]
        assert "process" in attested[0][1]
        # What it published before its end is its own, and nobody is in its place.
        assert (side.hook.held(), side.hook.ended, side.hook.lives) == (3, 1, [])
        assert side.bridge.counts.lives == 1
        assert (await side.bridge.remove([EngineHash(b"x" * 8)], WAIT_S, request=1)).refused == "engine_error"
        await side.bridge._tend_agent(1e9)
        assert (len(attested), side.hook.ended, side.hook.lives) == (1, 1, [])


async def test_whoever_answers_after_an_end_is_one_new_life(core: FakeCore, agent: Agent, path: str) -> None:
    await ran(core, "a", prompt(1, 2))
    async with beside(core, path) as side:
        await ended(side, [])
        assert await side.bridge.confirm(LONG_S) == Unanswered()
        assert len(side.hook.lives) == 1
        # This engine never ended, so all that it has ever published is the new life's.
        assert side.hook.held() == 2
        await ran(core, "b", prompt(3))
        assert isinstance(await side.bridge.confirm(LONG_S), Confirmed)
        assert len(side.hook.lives) == 1
        assert side.hook.held() == 3


async def test_a_connection_that_broke_is_no_end_of_the_process(
    core: FakeCore, agent: Agent, path: str
) -> None:
    await ran(core, "a", prompt(1, 2))
    attested: list[tuple[str, str]] = []
    async with beside(core, path) as side:
        agent_bridge = side.bridge._agent
        assert agent_bridge is not None
        agent_bridge._attest = lambda life, evidence: attested.append((life, evidence))
        assert side.client._writer is not None
        side.client._writer.transport.abort()
        await until(lambda: not side.client.connected)
        side.client._retry_s = 0.0
        assert isinstance(await side.bridge.confirm(LONG_S), Confirmed)
        assert side.client.connected
        await side.bridge._tend_agent(0.0)
        assert (attested, side.hook.ended) == ([], 0)
        # The process is still held: its end would show.
        await ended(side, attested)
        assert (len(attested), side.hook.ended) == (1, 1)


async def test_the_end_of_a_process_is_attested_of_its_own_life_when_the_next_one_was_seen_first(
    core: FakeCore, agent: Agent, path: str
) -> None:
    await ran(core, "a", prompt(1, 2))
    attested: list[tuple[str, str]] = []
    async with beside(core, path) as side:
        intake = side.bridge._intake
        life = intake.life
        intake.take(EngineRestarted(RestartSign.OTHER_BYTES, 0))
        assert intake.life != life
        await ended(side, attested)
        assert [one[0] for one in attested] == [life]
        assert (side.hook.ended, side.hook.lives) == (0, [intake.life])


async def test_the_end_of_a_process_ends_every_life_that_its_stream_has_shown(
    core: FakeCore, agent: Agent, path: str
) -> None:
    await ran(core, "a", prompt(1, 2))
    attested: list[tuple[str, str]] = []
    async with beside(core, path) as side:
        intake = side.bridge._intake
        first = intake.life
        # The bridge lagged behind the engine's buffer: perhaps another life, which shows in the same process.
        intake.take(EngineRestarted(RestartSign.HISTORY_CUT, 0))
        await side.trusted()
        await ended(side, attested)
        assert [one[0] for one in attested] == [first, intake.life]
        assert side.hook.ended == 1


async def ended(side: Side, attested: list[tuple[str, str]]) -> None:
    """The process that the agent named is gone, as far as its bridge can see."""
    agent_bridge = side.bridge._agent
    assert agent_bridge is not None
    agent_bridge._attest = lambda life, evidence: attested.append((life, evidence))
    process = agent_bridge.link._process
    assert process is not None
    process.ended = lambda: True  # type: ignore[method-assign]
    await side.bridge._tend_agent(0.0)


def began(request: Request) -> bool:
    return request.num_computed_tokens > 0


def preempt_one(core: FakeCore) -> None:
    for request in core.scheduler.running[:1]:
        core.scheduler.preempt(request)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_an_engine_does_its_stream_is_its_pool(path: str, seed: int) -> None:
    """Shared prefixes, duplicates, decoding, preemption, eviction, resets and removals in a pool that is too small."""
    rng = random.Random(seed)
    with FakeCore(blocks=48, groups=1 + seed % 2) as core:
        agent = attach(core, path)
        assert agent is not None
        async with beside(core, path) as side:
            running = asyncio.create_task(side.bridge.run())
            for step in range(60):
                ids = [rng.randrange(1, 4) for _ in range(rng.randrange(1, 5))]
                name = f"r{step}"
                request = Request(
                    name, prompt(*ids), outputs=rng.choice([0, 0, 40]), skip_reading=rng.random() < 0.2
                )
                match rng.randrange(8):
                    case 0:
                        core.on_thread(core.pool.reset_prefix_cache)
                    case 1:
                        hashes = [EngineHash(one) for one in names(request)]
                        assert (await side.bridge.remove(hashes, WAIT_S, request=50)).removed
                        side.hook.stream.removed(hashes, 50)
                    case 2:
                        core.add(request)
                        await until(partial(began, request))
                        core.on_thread(partial(preempt_one, core))
                    case _:
                        core.add(request)
                await until(lambda: not core.scheduler.requests and core.input_queue.empty())
                if step % 10 == 9:
                    await until(lambda: not side.hook.doubtful)
                    answer = await side.bridge.confirm(LONG_S)
                    while not isinstance(answer, Confirmed) or answer.basis is not Basis.ENGINE:
                        answer = await side.bridge.confirm(LONG_S)
                    await until(lambda: not side.hook.doubtful)
                    held = sum(one.count for one in side.hook.stream.checksums())
                    assert held == len(core.pool.cached_block_hash_to_block._cache)
                    assert side.hook.stream.orphan_counts() == (0, 0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        agent.stop()
