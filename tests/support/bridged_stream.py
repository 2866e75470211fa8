"""What a bridge makes of an engine's bytes, as far as a reader: source, bridge, stream, codec, fold; no services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from events.fold.registry import Registry
from events.hooks.bridge import Bridge
from events.hooks.engine_adapter import VLLM, EngineAdapter
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import EngineBatch, EngineHash
from events.hooks.engine_port import Confirmed
from events.hooks.engine_recovery import Heartbeat
from events.hooks.engine_source import EngineSource
from events.hooks.life_file import LifeFile
from events.hooks.obligation import Obligations
from events.hooks.zmq_source import ZmqSource
from events.ids import Capability
from events.model.part import UnknownEvents
from events.signing import verify
from tests.support.folded_stream import CONTENT, FoldedStream

LONG_S = 30.0


class BridgedStream:
    """The hook of a bridge: everything it is told is folded at once. Nobody has an agent here."""

    log = "log-1"
    doubtful = False

    def inspected(self, resident: Mapping[int, Mapping[EngineHash, int]]) -> None:
        raise AssertionError("there is no agent")

    def reachable_by(self, removal: Capability, *, admission_known: bool) -> None:
        raise AssertionError("there is no agent")

    def __init__(self, config: EngineConfig) -> None:
        self.installed = 100
        self.obligations = Obligations(Registry(verify), ())
        self.folded = FoldedStream(config)
        self.lives = ["life-1"]

    def feed(self, batch: EngineBatch, admitted_after: int | None = None) -> None:
        self.folded.feed(batch, admitted_after)

    def lost(self, first: int, last: int | None) -> None:
        self.folded.lose(first, last)

    def unknown(self, kind: str, length: int) -> None:
        self.folded.write([UnknownEvents(kind=kind, length=length)], {})

    def restarted(self, engine_life: str, *, born_after: int | None = None) -> None:
        del born_after
        self.lives.append(engine_life)
        if len(self.lives) > 1 and self.lives[-2] == engine_life:
            self.folded.stream.whole()
        self.folded.open(engine_life)

    def engine_ended(self) -> None:
        raise AssertionError("there is no agent that would see it")


class Bridged:
    """A bridge attached to an engine's sockets, and what a reader has of it."""

    def __init__(self, source: EngineSource, bridge: Bridge, hook: BridgedStream) -> None:
        self.source = source
        self.bridge = bridge
        self.hook = hook
        self.beats = 0

    @property
    def folded(self) -> FoldedStream:
        return self.hook.folded

    async def upto(self, messages: int) -> FoldedStream:
        """Waits until so many messages of the engine were taken; what a reader has then."""
        async with asyncio.timeout(LONG_S):
            while self.bridge.counts.messages < messages:
                await self.bridge.confirm(1.0)
        return self.folded

    async def reached(self, seq: int) -> FoldedStream:
        """Waits until the engine's message of this number, or a newer one, was taken."""
        async with asyncio.timeout(LONG_S):
            while (newest := self.source.newest) is None or newest.seq < seq:
                await self.bridge.confirm(1.0)
        return self.folded

    async def drain(self) -> None:
        """Takes what the subscription has brought, for a moment, as the bridge does when it runs."""
        items = await self.source.receive(0.02)
        self.beats += sum(isinstance(item, Heartbeat) for item in items)
        await self.bridge._intake.feed(items)

    async def confirmed(self) -> bool:
        """Whether the engine vouches for it all now."""
        return isinstance(await self.bridge.confirm(LONG_S), Confirmed)


@asynccontextmanager
async def bridged(
    endpoint: str,
    replay: str | None,
    *,
    topic: str = "",
    rank: int = 0,
    adapter: EngineAdapter = VLLM,
    config: EngineConfig | None = None,
    attach_s: float = LONG_S,
) -> AsyncIterator[Bridged]:
    """Attaches a bridge; leaving closes its sockets."""
    config = config or EngineConfig(
        engine=adapter.engine, content=CONTENT, short_last_blocks=adapter.short_last_blocks
    )
    source = ZmqSource(
        endpoint,
        replay,
        topic,
        repair_timeout_s=0.5,
        read_heartbeat=adapter.read_heartbeat,
        snapshot_question=adapter.snapshot_question,
    )
    async with source:
        yield await attached(source, config, rank=rank, adapter=adapter, attach_s=attach_s)


async def attached(
    source: EngineSource,
    config: EngineConfig,
    *,
    rank: int = 0,
    adapter: EngineAdapter = VLLM,
    attach_s: float = LONG_S,
    life_file: LifeFile | None = None,
) -> Bridged:
    """A bridge that has taken the source's history."""
    bridge = Bridge(source, rank=rank, adapter=adapter, life_file=life_file)
    attachment = await bridge.attach(attach_s)
    hook = BridgedStream(config)
    hook.lives = [attachment.life]
    hook.folded.open(attachment.life, from_birth=attachment.from_birth)
    bridge.bind(hook, attachment)
    return Bridged(source, bridge, hook)
