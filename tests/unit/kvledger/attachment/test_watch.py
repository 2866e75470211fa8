"""An engine that serves and never publishes is an alarm; one that changes under its name loses its profiles."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from events.hooks.bridge import Bridge
from events.hooks.engine_http import EngineHttp
from events.hooks.hook import Hook
from events.hooks.intake import BridgeCounts
from events.ids import Alarm
from kvledger.attachment.bridge_settings import BridgeSettings, leave
from kvledger.attachment.life_identity import LifeIdentity
from kvledger.attachment.metric_page import samples
from kvledger.attachment.plan import Wanted, make_plan
from kvledger.attachment.profile_merge import with_settings
from kvledger.attachment.relearn import Relearner
from kvledger.attachment.report import EngineUnreachableError
from kvledger.attachment.watch import EngineWatch, IdentityChangedError, long_prompts
from kvledger.engine_profile import EngineProfile
from tests.support.fake_engine import FakeEngine
from tests.support.fake_engine_report import Served, ServerFacts, metrics
from tests.support.model_folder import make, model


@dataclass
class Heard:
    """Of a bridge, what a watch asks."""

    heard: bool = False
    counts: BridgeCounts = field(default_factory=BridgeCounts)


@dataclass
class Retired:
    """Of a hook, what a watch tells it."""

    alarm: Alarm | None = None
    engine_life: str = "life-1"
    retired: list[str | None] = field(default_factory=list)

    def retire_profiles(self, adapter: str | None = None) -> None:
        self.retired.append(adapter)


@dataclass
class World:
    engine: FakeEngine
    home: Path
    bridge: Heard = field(default_factory=Heard)
    hook: Retired = field(default_factory=Retired)
    revisions: dict[str, str] = field(default_factory=dict)

    def watch(self, *, unheard: bool = True, relearner: Relearner | None = None) -> EngineWatch:
        return EngineWatch(
            EngineHttp(self.engine.http_url),
            self.engine.rank,
            cast(Bridge, self.bridge),
            cast(Hook, self.hook),
            self.revisions,
            unheard=unheard,
            relearner=relearner,
            identity=LifeIdentity(self.home / "identity.json"),
        )

    async def relearning(self, given: EngineProfile | None = None) -> EngineWatch:
        wanted = Wanted(self.engine.http_url, given=given or EngineProfile())
        plan = await make_plan(wanted, self.home)
        self.revisions.update(plan.profile.adapters)
        return self.watch(relearner=Relearner(wanted, self.home, plan))

    async def begin(self, life: str, weights: str | None = None) -> tuple[str | None, ...]:
        """What a bridge that starts now is told to take as void."""
        plan = await make_plan(Wanted(self.engine.http_url, weights=weights), self.home)
        return LifeIdentity(self.home / "identity.json").begin(life, plan)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with FakeEngine(http_port=0) as engine:
        engine.facts.root = str(model(tmp_path / "model"))
        engine.facts.started_s += 60
        yield World(engine, tmp_path / "home")


async def test_serving_without_publishing_is_an_alarm_from_the_second_look_on(world: World) -> None:
    watch = world.watch()
    await watch.look()
    await world.engine.complete([1] * 40)
    await watch.look()
    assert world.hook.alarm is None
    await watch.look()
    assert world.hook.alarm is Alarm.UNPUBLISHED
    world.bridge.heard = True
    await watch.look()
    assert world.hook.alarm is None


async def test_an_idle_engine_and_prompts_that_fill_no_block_are_no_alarm(world: World) -> None:
    watch = world.watch()
    for _ in range(3):
        await world.engine.complete([1] * 15)
        await watch.look()
    assert world.hook.alarm is None


async def test_what_was_served_before_the_bridge_came_counts_only_if_replay_says_that_nothing_was_published(
    world: World,
) -> None:
    await world.engine.complete([1] * 40)
    late = world.watch(unheard=False)
    for _ in range(3):
        await late.look()
    assert world.hook.alarm is None
    known = world.watch(unheard=True)
    for _ in range(2):
        await known.look()
    assert world.hook.alarm is Alarm.UNPUBLISHED


async def test_an_engine_without_prefix_caching_has_nothing_to_publish(world: World) -> None:
    world.engine.facts.caching = False
    watch = world.watch()
    for _ in range(3):
        await world.engine.complete([1] * 40)
        await watch.look()
    assert world.hook.alarm is None


def test_only_prompts_longer_than_the_first_bound_that_is_no_less_than_a_block_count_and_only_the_ranks_own() -> (
    None
):
    page = metrics(ServerFacts(), [(0, 16, 8, Served([15, 18, 20, 21, 400])), (1, 16, 8, Served([400] * 9))])
    assert long_prompts(samples(page), "0") == 2
    assert long_prompts(samples(page), "1") == 9
    assert long_prompts(samples(page), "2") is None
    assert long_prompts((), "0") is None


@pytest.mark.parametrize("garbage", ['le="much"', 'le=""'])
def test_a_bucket_without_a_bound_is_left_out(garbage: str) -> None:
    whole = metrics(ServerFacts(), [(0, 16, 8, Served([15, 400]))])
    page = whole + f'\nvllm:request_prompt_tokens_bucket{{engine="0",{garbage}}} 7\n'
    page += 'vllm:cache_config_info{block_size="²",engine="1"} 1\n'
    assert long_prompts(samples(page), "0") == long_prompts(samples(whole), "0") == 1
    assert long_prompts(samples(page), "1") is None


async def test_what_is_void_is_kept_until_it_can_be_written_down(world: World, tmp_path: Path) -> None:
    plan = await make_plan(Wanted(world.engine.http_url), world.home)
    place = tmp_path / "elsewhere"
    identity = LifeIdentity(place / "identity.json")
    assert identity.begin("life-1", plan) == ()
    (place / "identity.json").unlink()
    place.rmdir()
    place.write_text("in the way of a folder")
    identity.follow("life-1", plan, [None])
    told = BridgeSettings(
        worker="w0",
        rank=0,
        model="m",
        domain="default",
        endpoint="tcp://127.0.0.1:1",
        replay=None,
        topic="",
        url=None,
        hash_algorithm=None,
        content=plan.profile.content,
    )
    leave(place / "settings.json", told)
    place.unlink()
    identity.follow("life-1", plan)
    assert LifeIdentity(place / "identity.json").begin("life-1", plan) == (None,)


async def test_an_adapter_that_was_loaded_again_loses_its_profile_and_gets_its_new_revision(
    world: World, tmp_path: Path
) -> None:
    folder = make(tmp_path / "ad", adapter_model__safetensors=b"one", adapter_config__json=b"{}")
    world.engine.facts.adapters = {"ad1": str(folder), "ad2": "owner/hub"}
    watch = await world.relearning()
    first = world.revisions["ad1"]
    await watch.look()
    await watch.look()
    assert world.hook.retired == []
    make(folder, adapter_model__safetensors=b"two!")
    await watch.look()
    assert world.hook.retired == ["ad1"]
    assert world.revisions["ad1"] != first
    world.engine.facts.adapters["ad2"] = "owner/other"
    await watch.look()
    assert world.hook.retired == ["ad1", "ad2"]
    world.engine.facts.adapters["ad3"] = str(folder)
    await watch.look()
    assert world.hook.retired == ["ad1", "ad2"]
    assert world.revisions["ad3"] == world.revisions["ad1"]


async def test_what_changes_between_learning_and_the_first_look_is_seen(world: World) -> None:
    world.engine.facts.adapters = {"ad1": "owner/hub"}
    watch = await world.relearning()
    world.engine.facts.adapters = {"ad1": "owner/other"}
    await watch.look()
    assert world.hook.retired == ["ad1"]


async def test_files_that_are_written_again_change_nothing_of_an_engine_that_has_read_them(
    world: World, tmp_path: Path
) -> None:
    watch = await world.relearning()
    await watch.look()
    model(tmp_path / "model", weights=b"downloaded again")
    os.utime(tmp_path / "model" / "model.safetensors", (world.engine.facts.started_s + 9,) * 2)
    world.engine.facts.adapters = {"ad1": "owner/hub"}
    await watch.look()
    await watch.look()
    assert world.hook.retired == []
    await world.engine.restart()
    with pytest.raises(IdentityChangedError):
        await watch.look()


async def test_weights_changed_in_place_retire_everything_and_end_the_bridge(world: World) -> None:
    watch = await world.relearning()
    await watch.look()
    world.engine.facts.weight_version = "2"
    with pytest.raises(IdentityChangedError):
        await watch.look()
    assert world.hook.retired == [None]
    # A bridge that comes back to this life must not take its old blocks for the new weights'.
    assert await world.begin("life-1") == (None,)
    assert await world.begin("life-1") == (None,)
    assert await world.begin("life-2") == ()


async def test_weights_changed_while_no_bridge_ran_void_the_lifes_blocks_and_a_field_filled_in_does_not(
    world: World,
) -> None:
    root, world.engine.facts.root = world.engine.facts.root, "owner/hub"
    world.engine.facts.adapters = {"ad1": "owner/one", "ad2": "owner/two"}
    assert await world.begin("life-1") == ()
    world.engine.facts.root = root
    assert await world.begin("life-1") == ()
    world.engine.facts.adapters["ad2"] = "owner/other"
    assert await world.begin("life-1") == ("ad2",)
    world.engine.facts.weight_version = "2"
    assert await world.begin("life-1") == (None, "ad2")
    assert await world.begin("life-1", weights="3") == (None, "ad2")
    assert await world.begin("life-2") == ()
    assert await world.begin("life-2", weights="4") == (None,)
    (world.home / "identity.json").write_text("rubbish")
    assert await world.begin("life-1") == ()


async def test_a_restart_with_other_weights_is_another_engine_and_one_with_the_same_is_not(
    world: World, tmp_path: Path
) -> None:
    watch = await world.relearning()
    await world.engine.restart()
    world.bridge.counts.lives += 1
    await watch.look()
    assert world.hook.retired == []
    model(tmp_path / "model", weights=b"other weights")
    await world.engine.restart()
    world.bridge.counts.lives += 1
    with pytest.raises(IdentityChangedError):
        await watch.look()
    world.hook.engine_life = "life-3"
    assert await world.begin("life-3") == ()


async def test_a_restart_that_contradicts_the_profile_is_another_engine_and_one_that_is_away_is_not(
    world: World,
) -> None:
    given = with_settings(EngineProfile(), ["kv_dtype=bfloat16"])
    watch = await world.relearning(given)
    await watch.look()
    world.engine.facts.config["model_config"] = {"dtype": "torch.float16"}
    await world.engine.restart()
    with pytest.raises(IdentityChangedError, match="kv_dtype"):
        await watch.look()
    assert world.hook.retired == [None]


async def test_an_engine_that_is_away_is_looked_at_again(world: World) -> None:
    watch = EngineWatch(
        EngineHttp("http://127.0.0.1:1"),
        0,
        cast(Bridge, world.bridge),
        cast(Hook, world.hook),
        {},
        unheard=True,
    )
    with pytest.raises(EngineUnreachableError):
        await watch.look()
    assert world.hook.alarm is None
