"""From what an engine says and what lies in its model's folder to the profile of its blocks. Pure.

A field is filled only from something that the running engine was told or has: a wrong value is worse than a
missing one, which only makes the profile `unverified`. Why a field is missing is kept for a person.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from events.ids import Tier
from events.model.profile import ContentProfile, LayoutProfile
from kvledger.attachment.metric_page import count_of
from kvledger.attachment.model_file import ModelFiles
from kvledger.attachment.report import FETCHING, UNNAMED_WEIGHTS, EngineReport, NotAnEngineError
from kvledger.engine_profile import EngineFacts, EngineProfile

DEV = "the engine says it only with VLLM_SERVER_DEV_MODE=1"
FOLDER = "no folder of the model is known here: --model-dir names it"
UNNAMED_CONNECTOR = "unnamed"
NATIVE_CONNECTOR = "OffloadingConnector or SimpleCPUOffloadConnector"
"""An environment variable of the engine chooses, which no route tells; what they tell of their tier is the same."""
OFFLOADING = {"native": NATIVE_CONNECTOR, "lmcache": "LMCacheMPConnector"}
"""With `--kv-offloading-size` the backend alone decides the connector, whatever else is configured (vLLM 0.32.0,
config/vllm.py)."""
POSITION_KEYS = (
    "alibi",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "position_embedding_type",
    "rope_local_base_freq",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rotary_pct",
)
VAGUE = (UNNAMED_CONNECTOR, NATIVE_CONNECTOR)
START_SLACK_S = 2.0
"""A process' start is told from the machine's, in whole seconds; vLLM reads its files well after that."""
_COMMIT = re.compile(r"^[0-9a-f]{40}$")
_TEXT = 1_900


@dataclass(frozen=True, slots=True)
class Learned:
    """`why` says of each mandatory field that is missing what would tell it."""

    profile: EngineProfile
    why: Mapping[str, str] = field(default_factory=dict)


def learn(
    report: EngineReport,
    files: ModelFiles | None,
    adapters: Mapping[str, str],
    ranks: int,
) -> Learned:
    """`adapters`: revision by name of those whose files were read; `ranks`: data-parallel ranks of the server.

    Raises NotAnEngineError for values that no profile can hold.
    """
    values: dict[str, Any] = {"model": report.model.id}
    why: dict[str, str] = {}
    for name, find in (
        ("revision", _revision),
        ("tokenizer_revision", _tokenizer),
        ("attention", _attention),
        ("position_encoding", _position),
        ("kv_dtype", _kv_dtype),
    ):
        value, reason = find(report, files)
        if value is None or len(value) > _TEXT:
            why[name] = reason or "it is too long"
        else:
            values[name] = value
    block = count_of(report.cache_setting("block_size"))
    if block:
        values["block_tokens"] = block
    if files is not None:
        values |= {"chat_template": files.chat_template, "mm_processor": files.processor}
    connectors = _connectors(report)
    try:
        profile = EngineProfile(
            content=ContentProfile(**values),
            layout=_layout(report, connectors),
            adapters=dict(adapters),
            engine=EngineFacts(
                version=report.version,
                hash_algorithm=report.cache_setting("prefix_caching_hash_algo"),
                connectors=connectors,
                capacity_blocks=_capacity(report, ranks),
            ),
        )
    except ValidationError as error:
        field = ".".join(str(step) for step in error.errors(include_url=False, include_input=False)[0]["loc"])
        raise NotAnEngineError(f"{report.url} says of its {field} what no engine can mean") from error
    return Learned(profile, why)


def _revision(report: EngineReport, files: ModelFiles | None) -> tuple[str | None, str]:
    if report.setting("load_config", "load_format") == "dummy":
        return None, "the engine runs with random weights (--load-format dummy)"
    found = report.setting("model_config", "revision")
    if files is not None:
        if report.started_s is not None and files.newest_s > report.started_s + START_SLACK_S:
            return None, f"files in {files.folder} are newer than the engine's process"
        found = f"hf:{files.commit}" if files.commit else files.weights
        if found is None:
            return None, f"{files.folder} holds no weights"
    elif isinstance(found, str) and _COMMIT.match(found):
        found = f"hf:{found}"
    else:
        return None, FOLDER
    return f"{found}{_quantization(report, files)}{_weight_version(report)}", ""


def _quantization(report: EngineReport, files: ModelFiles | None) -> str:
    """Weights that are quantized while they are loaded aren't those of the files."""
    method = report.setting("model_config", "quantization")
    if method is None or (files is not None and files.config.get("quantization_config")):
        return ""
    return f" quantization={method}"


def _weight_version(report: EngineReport) -> str:
    version = report.weight_version
    return "" if version in (None, "", UNNAMED_WEIGHTS) else f" weights={version}"


def _tokenizer(report: EngineReport, files: ModelFiles | None) -> tuple[str | None, str]:
    model, tokenizer = (report.setting("model_config", name) for name in ("model", "tokenizer"))
    if tokenizer is None:
        return None, DEV
    commit = report.setting("model_config", "tokenizer_revision")
    if tokenizer == model and files is not None:
        found = f"hf:{files.commit}" if files.commit else files.tokenizer
        return found, f"{files.folder} holds no tokenizer"
    if isinstance(commit, str) and _COMMIT.match(commit):
        return f"hf:{commit}", ""
    return None, FOLDER if tokenizer == model else f"the tokenizer is another one, {tokenizer}"


def _attention(report: EngineReport, files: ModelFiles | None) -> tuple[str | None, str]:
    del files
    if not report.dev_mode:
        return None, DEV
    if report.setting("attention_config", "backend_per_kind"):
        kinds = json.dumps(report.setting("attention_config", "backend_per_kind"), sort_keys=True)
        return f"{report.setting('attention_config', 'backend')} {kinds}", ""
    backend = report.setting("attention_config", "backend")
    if not isinstance(backend, str):
        return None, "the engine chose its backend itself and names it in its log only: --attention-backend"
    version = report.setting("attention_config", "flash_attn_version")
    name = backend.rpartition(".")[2]
    return name if version is None else f"{name}-{version}", ""


def _position(report: EngineReport, files: ModelFiles | None) -> tuple[str | None, str]:
    if not report.dev_mode:
        return None, DEV
    if files is None or not files.config:
        return None, FOLDER
    if report.setting("model_config", "hf_overrides"):
        return None, "the engine was started with --hf-overrides"
    config = files.config
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        config = {**config, **inner}
    found = {name: config[name] for name in POSITION_KEYS if config.get(name) is not None}
    return json.dumps(found, sort_keys=True, separators=(",", ":")), ""


def _kv_dtype(report: EngineReport, files: ModelFiles | None) -> tuple[str | None, str]:
    del files
    cache = report.setting("cache_config", "cache_dtype") or report.cache_setting("cache_dtype")
    model = report.setting("model_config", "dtype")
    if cache is None or model is None:
        return None, DEV
    own = str(model).removeprefix("torch.")
    # What is cached was computed in the model's own type before it was converted.
    return own if cache == "auto" else f"{cache} from {own}", ""


def _connectors(report: EngineReport) -> tuple[str, ...]:
    named = report.setting("kv_transfer_config", "kv_connector")
    inner = report.setting("kv_transfer_config", "kv_connector_extra_config", "connectors")
    if named == "MultiConnector" and isinstance(inner, list):
        names = [one.get("kv_connector") for one in inner if isinstance(one, Mapping)]
        return tuple(str(name) for name in names if name) or (named,)
    if isinstance(named, str):
        return (named,)
    if report.dev_mode:
        return ()
    if report.cache_setting("kv_offloading_size") is not None:
        backend = report.cache_setting("kv_offloading_backend") or ""
        return (OFFLOADING.get(backend, UNNAMED_CONNECTOR),)
    return (UNNAMED_CONNECTOR,) if any(one.name == FETCHING for one in report.metrics) else ()


def _layout(report: EngineReport, connectors: tuple[str, ...]) -> LayoutProfile:
    def size(name: str) -> int:
        value = report.setting("parallel_config", name)
        return value if isinstance(value, int) and value > 0 else 1

    connector = connectors[0] if connectors and connectors[0] not in VAGUE else None
    return LayoutProfile(
        tp_size=size("tensor_parallel_size"),
        pp_size=size("pipeline_parallel_size"),
        kv_head_layout=report.cache_setting("kv_cache_layout"),
        connector=connector,
        connector_version=f"vllm {report.version}" if connector and report.version else None,
    )


def _capacity(report: EngineReport, ranks: int) -> dict[Tier, int]:
    """vLLM adds up the blocks of all ranks (v1/engine/core_client.py), so of one alone it says how many."""
    blocks = count_of(report.cache_setting("num_gpu_blocks"))
    return {Tier.GPU: blocks} if ranks == 1 and blocks else {}
