"""Begins to watch a rank beside its bridge, and tells its stream first what of the engine's history is void."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from events.hooks.bridge import Attachment, Bridge
from events.hooks.engine_http import EngineHttp
from events.hooks.engine_stream import EngineStream
from events.hooks.hook import Hook
from kvledger.attachment.bridge_settings import SUFFIX, BridgeSettings, leave
from kvledger.attachment.life_identity import LifeIdentity
from kvledger.attachment.relearn import Relearner
from kvledger.attachment.watch import EngineWatch
from kvledger.engine_profile import EngineProfile
from kvledger.keyfile import read_key

if TYPE_CHECKING:
    from kvledger.bridging import EngineAddress

IDENTITY = ".identity.json"


def begin_watching(
    home: Path,
    engine: EngineAddress,
    profile: EngineProfile,
    bridge: Bridge,
    hook: Hook,
    stream: EngineStream,
    attachment: Attachment,
    relearner: Relearner | None,
) -> asyncio.Task[None]:
    """Call it after the history was fed and before the hook begins. The task runs until it is cancelled, idle
    where the engine's HTTP server isn't known; it raises IdentityChangedError. Of `profile` the stream must read
    the adapters' revisions as they are, for the watch learns more of them."""
    stem = home / "bridge" / f"{engine.worker.replace('/', '_')}-{engine.rank}"
    content = profile.content
    told = content if content.model is not None else content.model_copy(update={"model": engine.model})
    url = engine.watch_url or engine.engine_url
    leave(
        stem.with_name(stem.name + SUFFIX),
        BridgeSettings(
            worker=engine.worker,
            rank=engine.rank,
            model=engine.model,
            domain=engine.domain,
            endpoint=engine.endpoint,
            replay=engine.replay,
            topic=engine.topic,
            url=url or engine.advertise,
            hash_algorithm=profile.engine.hash_algorithm,
            content=told,
        ),
    )
    identity = LifeIdentity(stem.with_name(stem.name + IDENTITY))
    if relearner is not None:
        # Before anything is told: what the history says of void blocks is nobody's from the start.
        for adapter in identity.begin(hook.engine_life, relearner.plan):
            stream.retire_profiles(adapter)
    if url is None:
        return asyncio.create_task(_idle())
    watch = EngineWatch(
        EngineHttp(url, rank=engine.rank, api_key=read_key(engine.api_key_file)),
        engine.rank,
        bridge,
        hook,
        profile.adapters,
        unheard=attachment.from_birth and not attachment.items,
        relearner=relearner,
        identity=identity,
    )
    return asyncio.create_task(watch.run())


async def _idle() -> None:
    await asyncio.Event().wait()
