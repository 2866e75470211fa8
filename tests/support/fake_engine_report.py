"""What the fake engine's server says about itself, in the bytes of vLLM's: JSON and Prometheus' text.

Routes and shapes are those of vLLM 0.32.0 (entrypoints/serve, entrypoints/openai/models, v1/metrics), compared with
what a running one answered; the labels of the cache's configuration are those of a captured engine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

PROMPT_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
NOT_FOUND = {"detail": "Not Found"}
NOT_ALLOWED = {"detail": "Method Not Allowed"}


@dataclass(slots=True)
class ServerFacts:
    """Settings that a server was started with; change them at any time. `config`: what `/server_info` has of
    the whole configuration, in development mode. `adapters`: path by name. `publishes`: whether it was started
    with --kv-events-config. `offloads_gib`, `offloads_by`: --kv-offloading-size and -backend. `details`: with
    --enable-prompt-tokens-details."""

    model: str = "fake"
    root: str = "/models/fake"
    aliases: tuple[str, ...] = ()
    adapters: dict[str, str] = field(default_factory=dict)
    api_key: str | None = None
    publishes: bool = True
    details: bool = True
    caching: bool = True
    alignment: int | None = None
    speculative: bool = False
    fetches: bool = False
    offloads_gib: float | None = None
    offloads_by: str = "native"
    weight_version: str = "default"
    started_s: float = field(default_factory=time.time)
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Served:
    """What one rank has served: prompt lengths, and the tokens found in its cache."""

    prompts: list[int] = field(default_factory=list)
    hits: int = 0


def compact(document: object) -> bytes:
    """As Starlette's JSONResponse renders."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def models(facts: ServerFacts) -> dict[str, Any]:
    """`GET /v1/models`."""
    cards = [_card(name, facts.root, None, 4_096) for name in (facts.model, *facts.aliases)]
    cards += [_card(name, path, facts.model, None) for name, path in facts.adapters.items()]
    return {"object": "list", "data": cards}


def source(endpoint: str, replay: str | None, topic: str) -> dict[str, Any]:
    """One rank of `GET /kv_event_sources`."""
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": replay,
        "buffer_steps": 10_000,
        "hwm": 100_000,
        "max_queue_size": 100_000,
        "topic": topic,
    }


def server_info(facts: ServerFacts, block_size: int, blocks: int) -> dict[str, Any]:
    """`GET /server_info?config_format=json`: what the tests' engines differ in, and what lies around it."""
    config = {
        "model_config": {
            "model": facts.root,
            "tokenizer": facts.root,
            "revision": None,
            "tokenizer_revision": None,
            "dtype": "torch.bfloat16",
            "quantization": None,
            "hf_overrides": {},
            "max_model_len": 4_096,
        },
        "cache_config": {
            "block_size": block_size,
            "cache_dtype": "auto",
            "num_gpu_blocks": blocks,
            "prefix_caching_hash_algo": "sha256",
        },
        "parallel_config": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1},
        "load_config": {"load_format": "auto", "download_dir": None},
        "attention_config": {
            "backend": "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend",
            "backend_per_kind": {},
            "flash_attn_version": None,
        },
        "speculative_config": {"method": "eagle", "num_speculative_tokens": 2} if facts.speculative else None,
        "kv_transfer_config": None,
    }
    for section, values in facts.config.items():
        merged = config.get(section)
        config[section] = {**merged, **values} if isinstance(merged, dict) else values
    return {"vllm_config": config, "vllm_env": {"VLLM_SERVER_DEV_MODE": True}, "system_env": {}}


def metrics(facts: ServerFacts, ranks: Iterable[tuple[int, int, int, Served]]) -> str:
    """`GET /metrics`, as far as somebody here reads it; a rank is (number, block size, blocks, served)."""
    lines = [
        "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.",
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {facts.started_s!r}",
    ]
    rows = list(ranks)
    # The server's front end adds up the blocks of all ranks.
    blocks = sum(row[2] for row in rows)
    for rank, size, _, served in rows:
        labels = f'engine="{rank}",model_name="{facts.model}"'
        lines += [
            f"vllm:prefix_cache_queries_total{{{labels}}} {float(sum(served.prompts))}",
            f"vllm:prefix_cache_hits_total{{{labels}}} {float(served.hits)}",
            f"vllm:external_prefix_cache_queries_total{{{labels}}} 0.0",
            f"vllm:num_requests_running{{{labels}}} 0.0",
        ]
        for bound in PROMPT_BUCKETS:
            count = sum(length <= bound for length in served.prompts)
            lines.append(
                f'vllm:request_prompt_tokens_bucket{{engine="{rank}",le="{float(bound)}",'
                f'model_name="{facts.model}"}} {float(count)}'
            )
        lines += [
            f'vllm:request_prompt_tokens_bucket{{engine="{rank}",le="+Inf",model_name="{facts.model}"}} '
            f"{float(len(served.prompts))}",
            f"vllm:request_prompt_tokens_count{{{labels}}} {float(len(served.prompts))}",
            _cache_info(facts, rank, size, blocks),
        ]
        if facts.speculative:
            lines.append(f"vllm:spec_decode_num_drafts_total{{{labels}}} 3.0")
        if facts.fetches:
            lines.append(
                f'vllm:num_requests_kv_fetch_by_stage{{engine="{rank}",model_name="{facts.model}",'
                'stage="in_progress"} 0.0'
            )
    return "\n".join(lines) + "\n"


def _cache_info(facts: ServerFacts, rank: int, size: int, blocks: int) -> str:
    labels = {
        "_block_size_resolved": "True",
        "block_size": size,
        "cache_dtype": "auto",
        "cache_hit_alignment_tokens": facts.alignment,
        "effective_attention_block_size": size,
        "enable_mamba_shared_prefix_checkpoint": "False",
        "enable_prefix_caching": facts.caching,
        "engine": rank,
        "gpu_memory_utilization": "0.92",
        "hash_block_size": "None",
        "is_attention_free": "False",
        "kv_cache_dtype_skip_layers": "[]",
        "kv_cache_layout": "None",
        "kv_cache_max_concurrency": "8.0",
        "kv_cache_memory_bytes": "1073741824",
        "kv_cache_size_tokens": size * blocks,
        "kv_offloading_backend": facts.offloads_by,
        "kv_offloading_size": facts.offloads_gib,
        "kv_sharing_fast_prefill": "False",
        "mamba_block_size": "None",
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": blocks,
        "num_gpu_blocks_override": blocks,
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": "None",
        "sliding_window": "None",
        "user_specified_block_size": "True",
    }
    inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"vllm:cache_config_info{{{inside}}} 1.0"


def _card(name: str, root: str, parent: str | None, length: int | None) -> dict[str, Any]:
    permission = {
        "id": "modelperm-0",
        "object": "model_permission",
        "created": 1,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": 1,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": length,
        "permission": [permission],
    }
