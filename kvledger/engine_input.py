"""Where an engine's events come from, and how they are read: by what its profile and its address say."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from events.hooks.engine_adapter import LMCACHE, EngineAdapter, UnknownEngineError, adapter_of
from events.hooks.engine_http import EngineHttp
from events.hooks.engine_source import EngineSource
from events.hooks.zmq_source import ZmqSource
from events.ids import Tier
from kvledger.attachment.page_size import page_size
from kvledger.engine_profile import EngineProfile
from kvledger.failure import CommandError, ExitCode
from kvledger.keyfile import read_key
from kvledger.lmcache_input import LmcacheInput, is_input

if TYPE_CHECKING:
    from kvledger.bridging import EngineAddress

LOG = logging.getLogger(__name__)


def adapter_for(engine: EngineAddress, profile: EngineProfile) -> EngineAdapter:
    """The adapter of the engine that the profile names. Raises CommandError if there is none, or if it doesn't
    speak at such an address."""
    advice = "name it in the profile's [engine] table"
    try:
        adapter = adapter_of(profile.engine.name, engine.model)
    except UnknownEngineError as error:
        what = f"engine {engine.worker}: {error}"
        raise CommandError(what, advice=advice, exit_code=ExitCode.CONFIGURATION) from error
    except ImportError as error:
        what = f"engine {engine.worker}: {error.name} is missing"
        raise CommandError(
            what, advice="pip install 'kvledger[lmcache]'", exit_code=ExitCode.CONFIGURATION
        ) from error
    if (adapter.engine == LMCACHE) != is_input(engine.endpoint):
        what = f"engine {engine.worker}: {adapter.engine} doesn't speak at {engine.endpoint}"
        raise CommandError(what, advice=advice, exit_code=ExitCode.CONFIGURATION)
    return adapter


async def with_page_size(
    engine: EngineAddress, adapter: EngineAdapter, profile: EngineProfile
) -> EngineProfile:
    """The profile, with the block size that an engine of short last blocks says itself if nobody has configured it."""
    if not adapter.short_last_blocks or profile.content.block_tokens is not None:
        return profile
    url = engine.watch_url or engine.engine_url
    found = None
    if url is not None:
        found = await page_size(EngineHttp(url, api_key=read_key(engine.api_key_file)))
    if found is None:
        LOG.warning(
            "%s: the profile names no content.block_tokens, so the first block that %s stores is taken for its "
            "page size; its /server_info has it under kv_events.block_size: --engine-url has it asked for",
            engine.worker,
            adapter.engine,
        )
        return profile
    return profile.model_copy(update={"content": profile.content.model_copy(update={"block_tokens": found})})


@asynccontextmanager
async def source_of(
    engine: EngineAddress, adapter: EngineAdapter, inputs: Mapping[str, LmcacheInput]
) -> AsyncIterator[EngineSource]:
    """The engine's stream; `inputs` are those of `lmcache_inputs`. Raises EngineAddressError."""
    found = inputs.get(engine.endpoint)
    if found is not None:
        yield found.source(engine.server or engine.worker)
        return
    source = ZmqSource(
        engine.endpoint,
        engine.replay,
        engine.topic,
        read_heartbeat=adapter.read_heartbeat,
        snapshot_question=adapter.snapshot_question,
    )
    async with source:
        yield source


def outliving(engine: EngineAddress, adapter: EngineAdapter) -> dict[Tier, str]:
    """What lies behind an LMCache server outlives it, also where nobody has named it."""
    if adapter.engine != LMCACHE:
        return {}
    return {tier: f"{engine.worker}-l2-{tier.value}" for tier in (Tier.DISK, Tier.REMOTE)}
