"""The engines that a bridge can listen to, by name: how their batches are read, and how they store. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from events.errors import KvledgerError
from events.hooks import sglang, vllm
from events.hooks.engine_event import EngineBatch
from events.hooks.engine_recovery import ReadHeartbeat
from events.hooks.lmcache import LmcacheReader, blake3_chunk_hash


class UnknownEngineError(KvledgerError):
    """Nobody here reads that engine's events; `engines` are those that can be read."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.engines = tuple(sorted((*ADAPTERS, LMCACHE)))
        super().__init__(f"no adapter reads the engine {engine!r}; there are {', '.join(self.engines)}")


@dataclass(frozen=True, slots=True)
class EngineAdapter:
    """One kind of engine. `decode` raises DecodeError ("engine_payload") for bytes that are no batch; what it
    can't read of a batch is an event of it. `short_last_blocks`, `connectors`: see `EngineConfig`.
    `read_heartbeat`, `snapshot_question` (what the replay socket is asked for a snapshot): None where the engine
    has no such thing, as none that is released does."""

    engine: str
    decode: Callable[[int, bytes], EngineBatch]
    short_last_blocks: bool = False
    connectors: tuple[str, ...] = ()
    read_heartbeat: ReadHeartbeat | None = None
    snapshot_question: bytes | None = None


VLLM: Final = EngineAdapter("vllm", vllm.decode_batch)
SGLANG: Final = EngineAdapter("sglang", sglang.decode_batch, short_last_blocks=True)
ADAPTERS: Final = {adapter.engine: adapter for adapter in (VLLM, SGLANG)}


LMCACHE: Final = "lmcache"


def adapter_of(engine: str, model: str) -> EngineAdapter:
    """The adapter of this name, for one stream: LMCache's keeps what it was told, of one model. Raises
    UnknownEngineError; ImportError for LMCache without the extra of its name."""
    name = engine.casefold()
    if name == LMCACHE:
        reader = LmcacheReader(model, *blake3_chunk_hash())
        return EngineAdapter(LMCACHE, reader.decode, connectors=("LMCacheServer",))
    found = ADAPTERS.get(name)
    if found is None:
        raise UnknownEngineError(engine)
    return found
