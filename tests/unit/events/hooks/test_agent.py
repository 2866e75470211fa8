"""The agent inside an engine: what it confirms, shows and removes, over a real unix socket."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.hooks.agent import Agent, attach
from events.hooks.agent_client import AgentClient, Residents
from events.hooks.engine_event import EngineHash
from tests.support.engine_with_agent import WAIT_S, agent, core, modules, names, path, prompt, ran, until
from tests.support.fake_core import SIZE, FakeCore, Request

__all__ = ["agent", "core", "modules", "path"]
pytestmark = pytest.mark.usefixtures("modules")


@pytest.fixture
async def client(agent: Agent) -> AsyncIterator[AgentClient]:
    made = AgentClient(agent.path)
    assert await made.connect(WAIT_S)
    yield made
    made.close()


async def resident(client: AgentClient) -> Residents:
    found = await client.inspect(WAIT_S)
    assert found is not None
    return found


async def test_hello_names_the_engine_its_pool_its_sockets_and_its_process(
    core: FakeCore, client: AgentClient
) -> None:
    hello = client.hello
    assert hello is not None
    assert (hello.version, hello.rank, hello.blocks, hello.pid) == ("0.32.0", 0, 255, os.getpid())
    assert [(g.index, g.kind, g.block_tokens, g.window) for g in hello.groups] == [
        (0, "full_attention", SIZE, None)
    ]
    assert hello.event_port == int(core.publisher.endpoint.rpartition(":")[2])
    assert hello.replay_port == int(core.publisher.replay_endpoint.rpartition(":")[2])
    assert client.process is not None
    assert not client.process.ended()


async def test_an_idle_engine_publishes_a_reset_when_asked_and_names_that_publication(
    core: FakeCore, client: AgentClient
) -> None:
    await ran(core, "a", prompt(1, 2))
    before = await client.confirm(0, WAIT_S)
    assert before is not None
    steps = core.steps
    assert core.on_thread(core.pool.reset_prefix_cache)
    after = await client.confirm(0, WAIT_S)
    assert after is not None
    assert (after.seq, after.told, core.steps) == (before.seq + 1, True, steps)
    assert not core.pool.kv_event_queue


async def test_what_is_published_by_steps_is_counted_with_what_the_agent_publishes(
    core: FakeCore, client: AgentClient
) -> None:
    first = await client.confirm(0, WAIT_S)
    assert first is not None
    assert first.seq == -1
    await ran(core, "a", prompt(1))
    await ran(core, "b", prompt(2))
    word = await client.confirm(0, WAIT_S)
    assert word is not None
    await until(lambda: core.publisher._seq == word.seq + 1)
    assert word.seq == 1


async def test_a_full_publisher_queue_is_not_waited_for_and_nothing_counts_as_told(tmp_path: Path) -> None:
    with FakeCore(queue_size=1) as core:
        agent = attach(core, str(tmp_path / "agent.sock"))
        assert agent is not None
        client = AgentClient(agent.path)
        assert await client.connect(WAIT_S)
        core.publisher._event_queue.full = lambda: True  # type: ignore[method-assign]
        assert core.on_thread(core.pool.reset_prefix_cache)
        word = await client.confirm(0, WAIT_S)
        assert word is not None
        assert not word.told
        assert await client.inspect(WAIT_S) is None
        del core.publisher._event_queue.full
        word = await client.confirm(0, WAIT_S)
        assert word is not None
        assert (word.told, word.seq) == (True, 0)
        client.close()
        agent.stop()


async def test_inspection_shows_every_hash_with_copies_references_and_groups(tmp_path: Path) -> None:
    with FakeCore(groups=2) as core:
        agent = attach(core, str(tmp_path / "agent.sock"))
        assert agent is not None
        client = AgentClient(agent.path)
        assert await client.connect(WAIT_S)
        request = await ran(core, "a", prompt(1, 2))
        await ran(core, "again", prompt(1, 2), skip_reading=True)
        found = await resident(client)
        expected = {EngineHash(name): 2 for name in names(request)}
        assert found.copies == {0: expected, 1: expected}
        assert (found.referenced, found.seq) == (0, 1)
        client.close()
        agent.stop()


async def test_a_large_pool_comes_in_pages_and_whole(tmp_path: Path) -> None:
    with FakeCore(blocks=12_000) as core:
        agent = attach(core, str(tmp_path / "agent.sock"))
        assert agent is not None
        client = AgentClient(agent.path)
        assert await client.connect(WAIT_S)
        request = await ran(core, "a", [token for one in range(9_000) for token in [one] * SIZE])
        found = await resident(client)
        assert found.copies == {0: {EngineHash(name): 1 for name in names(request)}}
        client.close()
        agent.stop()


async def test_removal_takes_all_duplicates_of_all_groups_and_nothing_else(tmp_path: Path) -> None:
    with FakeCore(groups=2) as core:
        agent = attach(core, str(tmp_path / "agent.sock"))
        assert agent is not None
        client = AgentClient(agent.path)
        assert await client.connect(WAIT_S)
        doomed = await ran(core, "a", prompt(1, 2), cache_salt="one")
        await ran(core, "again", prompt(1, 2), cache_salt="one", skip_reading=True)
        other = await ran(core, "b", prompt(1, 2), cache_salt="two")
        steps = core.steps
        word = await client.remove(names(doomed), 5, WAIT_S)
        assert word is not None
        assert (word.removed, word.referenced, word.told, core.steps) == (8, 0, True, steps)
        kept = {EngineHash(name): 1 for name in names(other)}
        assert (await resident(client)).copies == {0: kept, 1: kept}
        assert (await ran(core, "c", prompt(1, 2), cache_salt="one")).hits == 0
        assert (await ran(core, "d", prompt(1, 2), cache_salt="two")).hits == 2
        client.close()
        agent.stop()


async def test_a_referenced_block_is_unreachable_at_once_and_its_request_ends_undisturbed(
    core: FakeCore, client: AgentClient
) -> None:
    core.step_s = 0.02
    running = core.add(Request("a", prompt(1, 2), outputs=1_000))
    await until(lambda: running.num_computed_tokens > 0)
    word = await client.remove(names(running, 2), 5, WAIT_S)
    assert word is not None
    assert (word.removed, word.referenced) == (2, 2)
    other = await ran(core, "b", prompt(1, 2))
    assert other.hits == 0
    assert "a" in core.scheduler.requests
    core.step_s = 0.0
    await until(lambda: "a" not in core.scheduler.requests)
    assert len(running.tokens) == 33 + 1_000


async def test_what_an_old_request_stores_later_never_becomes_reachable(
    core: FakeCore, client: AgentClient
) -> None:
    core.step_s = 0.02
    running = core.add(Request("a", prompt(1, 2), outputs=1_000))
    await until(lambda: running.num_computed_tokens > 0)
    assert await client.remove(names(running, 2), 5, WAIT_S) is not None
    # Decoding goes on, and a preemption has it store its whole prefix again.
    core.on_thread(lambda: core.scheduler.preempt(running))
    core.step_s = 0.0
    await until(lambda: "a" not in core.scheduler.requests)
    assert len(running.block_hashes) > 6
    assert (await resident(client)).copies == {}


async def test_a_request_of_later_content_is_not_barred(core: FakeCore, client: AgentClient) -> None:
    assert await client.confirm(7, WAIT_S) is not None
    doomed = await ran(core, "a", prompt(1, 2))
    assert await client.remove(names(doomed), 5, WAIT_S) is not None
    again = await ran(core, "b", prompt(1, 2))
    assert set((await resident(client)).copies[0]) == {EngineHash(name) for name in names(again)}


async def test_the_oldest_admission_is_that_of_the_oldest_request_that_runs(
    core: FakeCore, client: AgentClient
) -> None:
    core.step_s = 0.01
    assert await client.confirm(3, WAIT_S) is not None
    old = core.add(Request("old", prompt(1), outputs=10_000))
    await until(lambda: old.num_computed_tokens > 0)
    word = await client.confirm(9, WAIT_S)
    assert word is not None
    assert (word.oldest, word.running, word.waiting) == (3, 1, 0)
    assert 0 < word.used < 1
    core.on_thread(lambda: core.scheduler.finish("old"))
    word = await client.confirm(9, WAIT_S)
    assert word is not None
    assert (word.oldest, word.running) == (9, 0)
    await ran(core, "new", prompt(2))
    word = await client.confirm(-1, WAIT_S)
    assert word is not None
    assert word.oldest == 9


async def test_another_log_or_a_lower_offset_dates_what_runs_no_newer_than_itself(
    core: FakeCore, client: AgentClient
) -> None:
    core.step_s = 0.01
    assert await client.confirm(9, WAIT_S, log="one") is not None
    running = core.add(Request("a", prompt(1), outputs=100_000))
    await until(lambda: running.num_computed_tokens > 0)
    oldest: list[int] = []
    for mark, log in ((12, "one"), (4, "one"), (12, "one"), (5_000, "two"), (5_001, "two")):
        word = await client.confirm(mark, WAIT_S, log=log)
        assert word is not None
        oldest.append(word.oldest)
    assert oldest == [9, 4, 4, -1, -1]
    core.on_thread(lambda: core.scheduler.finish("a"))
    word = await client.confirm(5_001, WAIT_S, log="two")
    assert word is not None
    assert word.oldest == 5_001


async def test_who_has_hit_a_doomed_block_counts_as_admitted_before_the_order(
    core: FakeCore, client: AgentClient
) -> None:
    core.step_s = 0.01
    await ran(core, "a", prompt(1, 2))
    assert await client.confirm(5, WAIT_S) is not None
    late = core.add(Request("late", prompt(1, 2), outputs=10_000))
    await until(lambda: late.num_computed_tokens > 0)
    assert late.hits == 2
    word = await client.remove(names(late, 2), 5, WAIT_S)
    assert word is not None
    assert word.oldest == 4
    core.on_thread(lambda: core.scheduler.finish("late"))


async def test_a_request_from_before_any_bridge_is_of_unknown_age(
    core: FakeCore, client: AgentClient
) -> None:
    core.step_s = 0.01
    early = core.add(Request("early", prompt(1), outputs=10_000))
    await until(lambda: early.num_computed_tokens > 0)
    word = await client.confirm(5, WAIT_S)
    assert word is not None
    assert word.oldest == -1
    core.on_thread(lambda: core.scheduler.finish("early"))


async def test_a_removal_of_thousands_lets_the_engine_step_in_between(tmp_path: Path) -> None:
    with FakeCore(blocks=12_000) as core:
        agent = attach(core, str(tmp_path / "agent.sock"))
        assert agent is not None
        client = AgentClient(agent.path)
        assert await client.connect(WAIT_S)
        doomed = await ran(core, "a", [token for one in range(4_000) for token in [one] * SIZE])
        core.step_s = 0.002
        other = core.add(Request("b", prompt(9_001), outputs=100_000))
        await until(lambda: other.num_computed_tokens > 0)
        steps = core.steps
        word = await client.remove(names(doomed), 5, WAIT_S)
        assert word is not None
        assert word.removed == 4_000
        assert core.steps - steps > 4
        core.on_thread(lambda: core.scheduler.finish("b"))
        client.close()
        agent.stop()
