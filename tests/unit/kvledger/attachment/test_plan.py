"""`kvledger attach` learns what an engine says, and says what it couldn't learn and what would tell it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from events.hooks.connector import Departures, departures
from events.ids import Tier
from events.model.profile import ContentProfile
from kvledger.attachment.identity import NATIVE_CONNECTOR, UNNAMED_CONNECTOR
from kvledger.attachment.plan import Plan, Wanted, make_plan, worker_name
from kvledger.attachment.profile_merge import ProfileConflictError, with_settings
from kvledger.command.attach import engines_of
from kvledger.engine_profile import EngineProfile
from kvledger.failure import CommandError, ExitCode
from tests.support.fake_engine import FakeEngine
from tests.support.model_folder import make, model


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    """One whose model lies on this machine and was there before it started."""
    async with FakeEngine(http_port=0) as entered:
        entered.facts.root = str(model(tmp_path / "model"))
        entered.facts.started_s += 60
        yield entered


async def plan_of(engine: FakeEngine, tmp_path: Path, **more: object) -> Plan:
    return await make_plan(replace(Wanted(engine.http_url), **more), tmp_path / "home")  # type: ignore[arg-type]


async def refused(engine: FakeEngine, tmp_path: Path, **more: object) -> CommandError:
    with pytest.raises(CommandError) as caught:
        await plan_of(engine, tmp_path, **more)
    return caught.value


async def test_in_development_mode_beside_its_files_an_engine_is_verified(
    engine: FakeEngine, tmp_path: Path
) -> None:
    plan = await plan_of(engine, tmp_path)
    content = plan.profile.content
    assert plan.missing == ()
    assert content.model == "fake"
    assert content.revision is not None
    assert content.revision.startswith("sha256:")
    assert (content.attention, content.kv_dtype) == ("FlashAttentionBackend", "bfloat16")
    assert (content.position_encoding, content.block_tokens) == ('{"rope_theta":1}', 16)
    (at,) = plan.ranks
    assert (at.endpoint, at.replay, at.topic) == (engine.endpoint, engine.replay_endpoint, engine.topic)
    assert plan.profile.engine.capacity_blocks == {Tier.GPU: 256}
    assert plan.profile.engine.hash_algorithm == "sha256"


async def test_without_development_mode_the_fields_that_are_missing_are_named_with_what_would_tell_them(
    tmp_path: Path,
) -> None:
    async with FakeEngine(http_port=0, dev_mode=False) as engine:
        engine.facts.root = str(model(tmp_path / "model"))
        engine.facts.started_s += 60
        plan = await plan_of(engine, tmp_path)
        assert set(plan.missing) == {"tokenizer_revision", "attention", "position_encoding", "kv_dtype"}
        assert all("VLLM_SERVER_DEV_MODE" in plan.why[name] for name in plan.missing)
        given = with_settings(
            EngineProfile(),
            ["tokenizer_revision=t", "attention=fa3", "position_encoding=rope", "kv_dtype=bf16"],
        )
        assert (await plan_of(engine, tmp_path, given=given)).missing == ()


@pytest.mark.parametrize(
    ("section", "values", "field"),
    [
        ("load_config", {"load_format": "dummy"}, "revision"),
        ("model_config", {"tokenizer": "/elsewhere"}, "tokenizer_revision"),
        ("model_config", {"hf_overrides": {"rope_theta": 2}}, "position_encoding"),
        ("attention_config", {"backend": None}, "attention"),
        ("model_config", {"dtype": None}, "kv_dtype"),
    ],
)
async def test_what_the_files_do_not_prove_is_left_out(
    engine: FakeEngine, tmp_path: Path, section: str, values: dict[str, object], field: str
) -> None:
    engine.facts.config[section] = values
    plan = await plan_of(engine, tmp_path)
    assert plan.missing == (field,)
    assert plan.why[field]


async def test_weights_that_are_newer_than_the_engine_are_not_its_weights(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.facts.started_s = 1.0
    plan = await plan_of(engine, tmp_path)
    assert plan.missing == ("revision",)
    assert "newer" in plan.why["revision"]


async def test_quantizing_while_loading_and_weights_changed_in_place_are_other_weights(
    engine: FakeEngine, tmp_path: Path
) -> None:
    plain = (await plan_of(engine, tmp_path)).profile.content.revision
    engine.facts.config["model_config"] = {"quantization": "fp8"}
    quantized = (await plan_of(engine, tmp_path)).profile.content.revision
    engine.facts.config.clear()
    engine.facts.weight_version = "step-7"
    changed = (await plan_of(engine, tmp_path)).profile.content.revision
    assert len({plain, quantized, changed}) == 3


async def test_an_adapter_is_known_by_its_files_and_otherwise_not_verified(
    engine: FakeEngine, tmp_path: Path
) -> None:
    here = make(tmp_path / "ad1", adapter_model__safetensors=b"a", adapter_config__json=b"{}")
    engine.facts.adapters.update(ad1=str(here), ad2="owner/on-the-hub")
    plan = await plan_of(engine, tmp_path)
    assert set(plan.profile.adapters) == {"ad1"}
    assert set(plan.report.adapters) == {"ad1", "ad2"}


async def test_a_connector_is_known_even_where_its_name_is_not(tmp_path: Path) -> None:
    async with FakeEngine(http_port=0, dev_mode=False) as engine:
        assert (await plan_of(engine, tmp_path)).profile.engine.connectors == ()
        engine.facts.fetches = True
        assert (await plan_of(engine, tmp_path)).profile.engine.connectors == (UNNAMED_CONNECTOR,)
        # With this option the backend alone decides, and what the connector tells of its tier is known.
        engine.facts.offloads_gib = 8.0
        native = (await plan_of(engine, tmp_path)).profile
        assert native.engine.connectors == (NATIVE_CONNECTOR,)
        assert departures("vllm", native.engine.connectors, Tier.CPU) is Departures.TOLD
        assert (native.layout.connector, native.layout.connector_version) == (None, None)
        engine.facts.offloads_by = "lmcache"
        assert (await plan_of(engine, tmp_path)).profile.engine.connectors == ("LMCacheMPConnector",)
        engine.facts.offloads_by = "newer"
        assert (await plan_of(engine, tmp_path)).profile.engine.connectors == (UNNAMED_CONNECTOR,)
    async with FakeEngine(http_port=0) as engine:
        engine.facts.config["kv_transfer_config"] = {"kv_connector": "OffloadingConnector"}
        plan = await plan_of(engine, tmp_path)
        assert plan.profile.engine.connectors == ("OffloadingConnector",)
        assert plan.profile.layout.connector == "OffloadingConnector"
        engine.facts.config["kv_transfer_config"] = {
            "kv_connector": "MultiConnector",
            "kv_connector_extra_config": {"connectors": [{"kv_connector": "A"}, {"kv_connector": "B"}]},
        }
        assert (await plan_of(engine, tmp_path)).profile.engine.connectors == ("A", "B")


async def test_the_layout_is_the_engines_own(engine: FakeEngine, tmp_path: Path) -> None:
    engine.facts.config["parallel_config"] = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    layout = (await plan_of(engine, tmp_path)).profile.layout
    assert (layout.tp_size, layout.pp_size) == (4, 2)


async def test_every_rank_has_sockets_of_its_own(engine: FakeEngine, tmp_path: Path) -> None:
    async with FakeEngine(rank=1, topic="second") as second:
        engine.ranks.append(second)
        plan = await plan_of(engine, tmp_path)
        assert [(at.rank, at.endpoint, at.topic) for at in plan.ranks] == [
            (0, engine.endpoint, engine.topic),
            (1, second.endpoint, "second"),
        ]
        # The server adds the ranks' blocks up, so of one alone nothing is known.
        assert plan.profile.engine.capacity_blocks == {}


async def test_an_engine_that_connects_is_bound_for(engine: FakeEngine, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    engine.told_endpoint = f"tcp://127.0.0.1:{port}"
    (at,) = (await plan_of(engine, tmp_path)).ranks
    assert (at.endpoint, at.binds) == (f"tcp://*:{port}", True)
    engine.told_endpoint = engine.endpoint
    (at,) = (await plan_of(engine, tmp_path)).ranks
    assert (at.endpoint, at.binds) == (engine.endpoint, False)


async def test_what_nobody_can_subscribe_to_is_said(engine: FakeEngine, tmp_path: Path) -> None:
    for told, word in (
        ("inproc://kv", "inside its own process"),
        ("tcp://192.0.2.1:5557", "not this machine"),
    ):
        engine.told_endpoint = told
        error = await refused(engine, tmp_path)
        assert word in error.message
        assert (error.exit_code, bool(error.advice)) == (ExitCode.CONFIGURATION, True)


async def test_an_older_engine_needs_to_be_told_where_it_publishes(tmp_path: Path) -> None:
    async with FakeEngine(http_port=0, version="0.28") as engine:
        error = await refused(engine, tmp_path)
        assert "vLLM 0.28.0" in error.message
        assert "--events tcp://" in error.advice
        assert error.exit_code == ExitCode.USAGE
        plan = await plan_of(
            engine, tmp_path, events="tcp://*:5557", replay="tcp://10.0.0.9:5657", ranks=2, topic="t"
        )
        assert [(at.rank, at.endpoint, at.replay, at.topic) for at in plan.ranks] == [
            (0, "tcp://127.0.0.1:5557", "tcp://10.0.0.9:5657", "t"),
            (1, "tcp://127.0.0.1:5558", "tcp://10.0.0.9:5658", "t"),
        ]


async def test_a_publisher_that_is_off_is_said_with_the_flag_that_turns_it_on(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.facts.publishes = False
    error = await refused(engine, tmp_path)
    assert "publishes no cache events" in error.message
    assert "--kv-events-config" in error.advice
    assert error.exit_code == ExitCode.CONFIGURATION


async def test_a_profile_of_another_engine_is_refused_by_the_field(
    engine: FakeEngine, tmp_path: Path
) -> None:
    given = EngineProfile(content=ContentProfile(model="fake", kv_dtype="fp8_e4m3"))
    with pytest.raises(ProfileConflictError, match=r"kv_dtype = 'fp8_e4m3', the engine says 'bfloat16'"):
        await plan_of(engine, tmp_path, given=given)


@pytest.mark.parametrize("setting", ["attention", "nonsense=1", "attention=", "block_tokens=many"])
def test_a_setting_that_is_none_is_refused(setting: str) -> None:
    with pytest.raises(CommandError) as caught:
        with_settings(EngineProfile(), [setting])
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_setting_goes_over_the_profile() -> None:
    given = EngineProfile(content=ContentProfile(attention="a", kv_dtype="k"))
    assert with_settings(given, ["attention=b", "block_tokens=32"]).content == ContentProfile(
        attention="b", kv_dtype="k", block_tokens=32
    )


def test_an_engine_without_a_name_is_called_by_its_address() -> None:
    assert worker_name("http://gpu-7:8000/") == "gpu-7:8000"
    assert worker_name("http://[::1]:8000/é") == "_::1_:8000/_"


async def test_a_model_of_the_hub_is_pointed_to_where_it_may_lie_and_never_guessed(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    snapshot = tmp_path / "hf" / "hub" / "models--owner--name" / "snapshots" / ("ab" * 20)
    model(snapshot)
    engine.facts.root = "owner/name"
    notes: list[str] = []
    plan = await make_plan(Wanted(engine.http_url), tmp_path / "home", notes.append)
    assert "revision" in plan.missing
    assert notes == [f"if the engine loaded it from there: --model-dir {snapshot}"]
    named = await plan_of(engine, tmp_path, model_dir=snapshot)
    assert named.profile.content.revision == f"hf:{'ab' * 20}"


async def test_attach_tells_every_rank_where_its_agent_is(engine: FakeEngine, tmp_path: Path) -> None:
    plan = await plan_of(engine, tmp_path)
    agent = tmp_path / "agent.sock"
    assert [one.agent for one in engines_of(plan, "default", None, agent)] == [agent]
    assert [one.agent for one in engines_of(plan, "default", None)] == [None]
