"""The engines that a bridge can listen to, by name: how their batches are read, and how they store. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from events.errors import KvledgerError
from events.hooks import sglang, vllm
from events.hooks.engine_event import EngineBatch


class UnknownEngineError(KvledgerError):
    """Nobody here reads that engine's events; `engines` are those that can be read."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.engines = tuple(sorted(ADAPTERS))
        super().__init__(f"no adapter reads the engine {engine!r}; there are {', '.join(self.engines)}")


@dataclass(frozen=True, slots=True)
class EngineAdapter:
    """One kind of engine. `decode` raises DecodeError ("engine_payload") for bytes that are no batch; what it
    can't read of a batch is an event of it. `short_last_blocks`: see `EngineConfig`."""

    engine: str
    decode: Callable[[int, bytes], EngineBatch]
    short_last_blocks: bool = False


VLLM: Final = EngineAdapter("vllm", vllm.decode_batch)
SGLANG: Final = EngineAdapter("sglang", sglang.decode_batch, short_last_blocks=True)
ADAPTERS: Final = {adapter.engine: adapter for adapter in (VLLM, SGLANG)}


def adapter_of(engine: str) -> EngineAdapter:
    """The adapter of this name. Raises UnknownEngineError."""
    found = ADAPTERS.get(engine.casefold())
    if found is None:
        raise UnknownEngineError(engine)
    return found
