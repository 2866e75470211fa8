"""Where a hook's words go: the open epoch's stream, the names of its domains in it, and its place in the log.

Between two epochs there is none; what is said then is lost to the log and is restated after the next one opens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from events.fold.registry import Registry
from events.hooks.engine_port import Parts
from events.hooks.stream import Epoch, OversizeEventError, SealedRecord, StreamWriter
from events.ids import StreamKey
from events.keyring import KeyRing
from events.model.batch import ControlPosition
from events.model.part import Opened, StreamEvent

LOG = logging.getLogger(__name__)


class Carrier(Protocol):
    """`events.hooks.emitter.Emitter`."""

    def offer(self, record: SealedRecord) -> bool: ...


class Outlet:
    """One hook's. `ask_repair(hold_s)` is called whenever something that was said is not in the stream."""

    def __init__(
        self, carrier: Carrier, registry: Registry, keyring: KeyRing, ask_repair: Callable[[float], None]
    ) -> None:
        self.dropped = 0
        self.said_while_shut = False
        self._carrier = carrier
        self._registry = registry
        self._keyring = keyring
        self._ask_repair = ask_repair
        self._writer: StreamWriter | None = None
        self._aliases: dict[str, bytes] = {}
        self._to_drop = 0
        self._drop_hold_s = 0.0

    @property
    def epoch(self) -> Epoch | None:
        return self._writer.epoch if self._writer is not None else None

    @property
    def stream(self) -> StreamKey | None:
        return self._writer.epoch.stream if self._writer is not None else None

    @property
    def position(self) -> tuple[int, bytes]:
        """(next_seq, prev) of the open stream; (0, nothing) without one."""
        return (self._writer.next_seq, self._writer.prev) if self._writer is not None else (0, b"")

    def open(self, epoch: Epoch, opened: Opened) -> bool:
        """Writes record 0; False if it could not be taken, then nothing has happened."""
        self._aliases.clear()
        writer = StreamWriter(epoch, self._aliases.__getitem__)
        if not writer.write((opened,), {}, self._control(), self._offer):
            return False
        self._writer = writer
        return True

    def shut(self) -> None:
        """The epoch is over. Idempotent."""
        self._writer = None

    def write(self, stream_events: tuple[StreamEvent, ...], parts: Parts) -> bool:
        """Numbers what is given now; False if any of it was dropped or no epoch is open."""
        writer = self._writer
        if writer is None:
            self.said_while_shut = True
            return False
        wanted = {domain: events for domain, events in parts.items() if events}
        parts = {domain: events for domain, events in wanted.items() if self._names(writer.epoch, domain)}
        whole = len(parts) == len(wanted)
        if stream_events or parts:
            try:
                whole &= writer.write(stream_events, parts, self._control(), self._offer)
            except OversizeEventError as error:
                LOG.error("%s: %s", writer.epoch.stream, error)
                whole = False
        if not whole:
            self._ask_repair(0.0)
        return whole

    def forget(self) -> None:
        """Domains that have left the key ring are not named again, unless by the keys that they come back with."""
        for domain in self._aliases.keys() - set(self._keyring):
            del self._aliases[domain]

    def drop_next(self, count: int, hold_s: float) -> None:
        """See `events.hooks.hook.Hook.drop_next`."""
        self._to_drop, self._drop_hold_s = count, hold_s

    def _names(self, epoch: Epoch, domain: str) -> bool:
        """Whether the domain has a name in this epoch. It keeps it while its keys last and until it is told
        to be gone; deriving it anew costs more than sealing a small record."""
        if domain not in self._aliases:
            keys = self._keyring.get(domain)
            if keys is None:
                return False
            who = epoch.stream
            self._aliases[domain] = keys.alias(who.worker, who.rank, epoch.epoch_no)
        return True

    def _control(self) -> ControlPosition:
        registry = self._registry
        return ControlPosition(offset=max(0, registry.next_offset - 1), hash=registry.hash)

    def _offer(self, record: SealedRecord) -> bool:
        if self._to_drop > 0 and record.seq > 0:
            self._to_drop -= 1
            self._ask_repair(self._drop_hold_s)
        elif self._carrier.offer(record):
            return True
        self.dropped += 1
        return False
