"""What a vLLM server says about itself over HTTP, read route by route; older ones lack some routes.

| route | seen in | gives |
|---|---|---|
| `/v1/models` | all | served names, model path, adapters with their paths |
| `/version` | all | vLLM's version |
| `/kv_event_sources` | 0.32 | the event publisher's settings by data-parallel rank; `{}`: it is off |
| `/metrics` | all | `vllm:cache_config_info`, counters |
| `/server_info?config_format=json` | 0.32, dev mode | the whole configuration |
| `/reset_prefix_cache` | all, dev mode | whether it is there: 405 to a GET, which changes nothing |
| `/weight_info` | 0.32, dev mode | the weights' version, counted up or named by whoever changes them in place |

Seen in vLLM 0.32.0: entrypoints/serve/instrumentator/basic.py, entrypoints/serve/dev, entrypoints/rl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import httpx
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from events.errors import KvledgerError
from events.hooks.engine_http import EngineHttp, json_of
from kvledger.attachment.metric_page import Sample, count_of, samples, total

READ_S = 10.0
INFO_S = 60.0
"""The first `/server_info` collects what is installed, which takes a busy machine many seconds."""
CACHE_INFO = "vllm:cache_config_info"
FETCHING = "vllm:num_requests_kv_fetch_by_stage"
"""There only if a KV connector may load blocks (vLLM 0.32.0, v1/metrics/loggers.py)."""
UNNAMED_WEIGHTS = "default"
"""What vLLM 0.32.0 calls weights that nobody has named (v1/engine/core.py)."""
STARTED = "process_start_time_seconds"


MAX_RANKS = 1_024
MAX_NAME = 200
Line = Annotated[str, StringConstraints(max_length=2_000, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""What an engine says is shown to people: one line, nothing that a terminal obeys."""


class EngineUnreachableError(KvledgerError):
    """Nothing answers there in time."""


class EngineRefusedError(KvledgerError):
    """It wants a key, or not this one."""


class NotAnEngineError(KvledgerError):
    """Something answers that isn't an OpenAI-compatible engine."""


class EventSource(BaseModel):
    """One rank's publisher, as `/kv_event_sources` tells it: addresses as the engine sees them."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    enable_kv_cache_events: bool = True
    publisher: Line | None = "zmq"
    endpoint: Line = "tcp://*:5557"
    replay_endpoint: Line | None = None
    buffer_steps: int = 10_000
    topic: Line = ""


class ServedModel(BaseModel):
    """One card of `/v1/models`; an adapter has a `parent`, and `root` is its path."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: Line
    root: Line | None = None
    parent: Line | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class EngineReport:
    """`sources` None: the server has no such route. `cache`: labels of `vllm:cache_config_info` by rank.
    `config` None: not in dev mode, or older than 0.32. `resets`: whether there is a route that empties the
    cache."""

    url: str
    models: tuple[ServedModel, ...]
    version: str = ""
    sources: Mapping[int, EventSource] | None = None
    cache: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    metrics: tuple[Sample, ...] = ()
    config: Mapping[str, Any] | None = None
    weight_version: str | None = None
    resets: bool = False

    @property
    def model(self) -> ServedModel:
        """The first that is no adapter."""
        return next((one for one in self.models if one.parent is None), self.models[0])

    @property
    def adapters(self) -> Mapping[str, str | None]:
        """Path by name, of those loaded now."""
        return {one.id: one.root for one in self.models if one.parent is not None}

    @property
    def started_s(self) -> float | None:
        """When the server's process began, by its own wall clock; None if it doesn't say so."""
        return total(self.metrics, STARTED)

    @property
    def dev_mode(self) -> bool:
        """Whether its development routes tell the configuration."""
        return self.config is not None

    def setting(self, *path: str) -> Any:
        """A value of the configuration; None if it, or the configuration, isn't there."""
        at: Any = self.config
        for name in path:
            at = at.get(name) if isinstance(at, Mapping) else None
        return at

    def cache_setting(self, name: str) -> str | None:
        """A setting of the KV cache as text; `None` and absent are the same."""
        for labels in self.cache.values():
            value = labels.get(name)
            return None if value in (None, "None") else value
        value = self.setting("cache_config", name)
        return None if value is None else str(value)


async def read_report(http: EngineHttp, timeout_s: float = READ_S) -> EngineReport:
    """Asks every route once. Raises EngineUnreachableError, EngineRefusedError, NotAnEngineError."""
    cards = await _document(http, "/v1/models", timeout_s)
    models = _models(cards)
    if not models:
        raise NotAnEngineError(f"{http.url}/v1/models lists no model: is this an OpenAI-compatible server?")
    version = await _document(http, "/version", timeout_s)
    sources = await _document(http, "/kv_event_sources", timeout_s)
    page = await _answer(http, "/metrics", timeout_s)
    found = tuple(samples(page.text)) if page.status_code == 200 else ()
    reset = await _answer(http, "/reset_prefix_cache", timeout_s)
    info = await _document(http, "/server_info?config_format=json", max(timeout_s, INFO_S))
    config = info.get("vllm_config") if isinstance(info, Mapping) else None
    return EngineReport(
        url=http.url,
        models=models,
        version=_line(version.get("version")) or "" if isinstance(version, Mapping) else "",
        sources=_sources(sources),
        cache={
            rank: sample.labels
            for sample in found
            if sample.name == CACHE_INFO and (rank := count_of(sample.labels.get("engine"))) is not None
        },
        metrics=found,
        config=config if isinstance(config, Mapping) else None,
        weight_version=await read_weight_version(http, timeout_s) if isinstance(config, Mapping) else None,
        resets=reset.status_code == 405,
    )


async def read_weight_version(http: EngineHttp, timeout_s: float) -> str | None:
    """What the engine calls its weights; None where it has no such route or no name for them."""
    found = await _document(http, "/weight_info", timeout_s)
    version = found.get("weight_version") if isinstance(found, Mapping) else None
    return _line(version)


async def read_models(http: EngineHttp, timeout_s: float) -> tuple[ServedModel, ...]:
    """Models and adapters served now. Raises as `read_report` does."""
    return _models(await _document(http, "/v1/models", timeout_s))


async def read_metrics(http: EngineHttp, timeout_s: float) -> tuple[Sample, ...]:
    """The metrics now, none if the server doesn't show any. Raises as `read_report` does."""
    page = await _answer(http, "/metrics", timeout_s)
    return tuple(samples(page.text)) if page.status_code == 200 else ()


async def _answer(http: EngineHttp, path: str, timeout_s: float) -> httpx.Response:
    try:
        answer = await http.ask("GET", path, None, timeout_s)
    except (httpx.HTTPError, TimeoutError, OSError) as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
        raise EngineUnreachableError(f"{http.url} does not answer ({why})") from error
    if answer.status_code in (401, 403):
        raise EngineRefusedError(f"{http.url}{path} wants a key ({answer.status_code})")
    return answer


async def _document(http: EngineHttp, path: str, timeout_s: float) -> Any:
    """The JSON that a route answers with; None where it isn't there or answers otherwise."""
    answer = await _answer(http, path, timeout_s)
    if answer.status_code != 200:
        return None
    try:
        return json_of(answer)
    except ValueError:
        return None


def _line(value: Any) -> str | None:
    """A version's name; None for what is none."""
    text = str(value) if isinstance(value, str | int | float) else ""
    return text if text.isprintable() and 0 < len(text) <= MAX_NAME else None


def _models(document: Any) -> tuple[ServedModel, ...]:
    cards = document.get("data") if isinstance(document, Mapping) else None
    found: list[ServedModel] = []
    for card in cards if isinstance(cards, list) else ():
        try:
            found.append(ServedModel.model_validate(card))
        except ValidationError:
            continue
    return tuple(found)


def _sources(document: Any) -> Mapping[int, EventSource] | None:
    if not isinstance(document, Mapping):
        return None
    if len(document) > MAX_RANKS:
        raise NotAnEngineError(f"/kv_event_sources lists {len(document):,} ranks")
    found: dict[int, EventSource] = {}
    for name, source in document.items():
        rank = count_of(name)
        try:
            if rank is None or rank >= MAX_RANKS:
                raise ValueError(name)
            found[rank] = EventSource.model_validate(source)
        except ValueError as error:
            raise NotAnEngineError(
                f"/kv_event_sources says of rank {name[:20]!r} what can't be read"
            ) from error
    return dict(sorted(found.items()))
