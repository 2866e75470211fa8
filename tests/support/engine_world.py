"""An engine's raw bytes all the way to an answer: vLLM decoder, `EngineStream`, codec, fold, view; no services."""

from __future__ import annotations

from events.hooks.engine_config import EngineConfig
from events.hooks.engine_stream import EngineStream
from events.hooks.translation import Translation
from events.hooks.vllm import decode_batch
from tests.support.log import PROFILE
from tests.support.reader_world import RING, Hook, World
from tests.support.vllm_message import message


class Engine:
    """One rank of a worker: what it publishes is read by a hook and written to the world's log."""

    def __init__(
        self, world: World, worker: str = "w0", rank: int = 0, config: EngineConfig | None = None
    ) -> None:
        self.world = world
        self.hook: Hook = world.join(worker, rank, start=False)
        self.stream = EngineStream(worker, rank, RING, config or EngineConfig(content=PROFILE))
        self._seq = 0
        self._take(Translation([self.stream.open("life-1", from_birth=True)], {}))

    def say(self, *events: object) -> None:
        """One published batch of these events."""
        self.publish(message(*events, rank=self.hook.builder.rank))

    def publish(self, payload: bytes) -> None:
        """Raises DecodeError where a bridge counts unreadable bytes and asks for replay."""
        batch = decode_batch(self._seq, payload)
        self._seq += 1
        self._take(self.stream.translate(batch, None))

    def confirm(self) -> None:
        """A pulse that echoes the newest beacon, with the hook's own checksums."""
        self.hook.copies = {}
        self.world.beacon()
        self.hook.pulse(checksums=False)

    def _take(self, translation: Translation) -> None:
        if not translation:
            return
        parts = [(self.hook.alias(domain), list(events)) for domain, events in translation.parts.items()]
        self.world.deliver(self.hook.builder.seal(*translation.stream_events, parts=parts).value)
