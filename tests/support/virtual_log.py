"""A log in virtual time, as the hooks' and readers' own classes see it: `kv.control`, `kv.events`, pulses, signals."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from events.chain import sha256
from events.fold.registry import Registry
from events.hooks.emitter import Emitter
from events.hooks.pulse import Pulser
from events.hooks.stream import SealedRecord
from events.ids import Role, StreamKey
from events.kafka.connection import KafkaConnection, RawRecord
from events.kafka.control import Appended
from events.model.control import ControlBody, DomainCreated, Registered, SchemaEnabled
from events.signing import verify
from events.topic import SIGNALS, TopicNames
from tests.support.log import ControlLog
from tests.support.virtual_loop import Wire

TENANT = "acme"
NOWHERE = KafkaConnection("127.0.0.1:1", TopicNames("virtual"))
"""For constructors; nothing is ever sent to it."""


class VirtualControl:
    """`kv.control`. `registered` is called at the very moment at which a registration is in the log."""

    def __init__(self, rng: random.Random) -> None:
        self.log = ControlLog(partitions=1)
        self.registered: dict[str, Callable[[], None]] = {}
        self._rng = rng
        self.log.append(SchemaEnabled(record="event_batch", version=1), Role.OPERATOR)
        self.log.append(DomainCreated(domain=TENANT, tenant=TENANT), Role.CONTROL)

    async def append(self, body: ControlBody, role: Role = Role.ENROLMENT) -> Appended:
        await asyncio.sleep(self._rng.uniform(0.002, 0.01))
        offset = self.log.append(body, role)
        if isinstance(body, Registered):
            self.registered.pop(body.worker, lambda: None)()
        value = self.log.records[offset][0]
        return Appended(offset, sha256(value), value)


class ControlFollower:
    """A registry that keeps up with the log, a fetch at a time. `current_ns`: when the last one that reached
    the end was begun. `cut`: nothing is read any more."""

    def __init__(
        self,
        control: VirtualControl,
        rng: random.Random,
        moved: Callable[[int], None],
        registry: Registry | None = None,
    ) -> None:
        self.registry = registry or Registry(verify)
        self.current_ns: int | None = None
        self.cut = False
        self.stalled_until_s = 0.0
        self._control = control
        self._rng = rng
        self._moved = moved

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.cut:
            begun_s, end = loop.time(), len(self._control.log.records)
            await asyncio.sleep(self._rng.uniform(0.003, 0.015))
            if self.stalled_until_s > loop.time():
                await asyncio.sleep(self.stalled_until_s - loop.time())
            if self.cut:
                return
            for offset in range(self.registry.next_offset, end):
                self._moved(offset)
            self.current_ns = round(begun_s * 1e9)
            await asyncio.sleep(0.02)

    async def wait_for(self, offset: int, timeout_s: float) -> bool:
        """See `events.hooks.registration.ControlFollower`."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self.registry.next_offset <= offset:
            if asyncio.get_running_loop().time() > deadline_s:
                return False
            await asyncio.sleep(0.005)
        return True


@dataclass
class VirtualLog:
    """`kv.events` has one partition and one reader, `deliver`, behind `events`; a record may be lost or come
    twice. `kv.signals` may be cut. `appended_ns` by (stream, seq)."""

    rng: random.Random
    deliver: Callable[[int, bytes], None]
    hear: Callable[[bytes], None]
    signal: Callable[[int, bytes], None]
    control: VirtualControl = field(init=False)
    signals: list[bytes] = field(default_factory=list)
    appended_ns: dict[tuple[StreamKey, int], int] = field(default_factory=dict)
    lose: dict[str, int] = field(default_factory=dict)
    twice: dict[str, int] = field(default_factory=dict)
    listeners: list[Callable[[RawRecord], None]] = field(default_factory=list)
    _next: int = 0

    def __post_init__(self) -> None:
        self.control = VirtualControl(self.rng)
        self.events = Wire(self.rng, 0.002, 0.025)
        self.pulses = Wire(self.rng, 0.002, 0.025)
        self.beacons = Wire(self.rng, 0.001, 0.008)
        self.to_reader = Wire(self.rng, 0.001, 0.008)
        self.to_hooks = Wire(self.rng, 0.001, 0.008)

    def append(self, record: SealedRecord) -> None:
        """A hook's record; see `lose` and `twice`."""
        worker = record.stream.worker
        if self.lose.get(worker, 0) > 0 and record.seq > 0:
            self.lose[worker] -= 1
            return
        now_s = asyncio.get_running_loop().time()
        self.appended_ns.setdefault((record.stream, record.seq), round(now_s * 1e9))
        copies = 1
        if self.twice.get(worker, 0) > 0:
            self.twice[worker] -= 1
            copies = 2
        for _ in range(copies):
            offset, self._next = self._next, self._next + 1
            self.events.send(lambda offset=offset: self.deliver(offset, record.value))  # type: ignore[misc]

    def write_signal(self, value: bytes) -> None:
        self.beacons.send(lambda: self._signalled(value))

    def cut_signals(self, count: int) -> None:
        """An unclean election: the newest records are gone and their offsets are given again."""
        del self.signals[max(1, len(self.signals) - count) :]

    def _signalled(self, value: bytes) -> None:
        offset = len(self.signals)
        self.signals.append(value)
        record = RawRecord(NOWHERE.topic(SIGNALS), 0, offset, None, value, None, 0)
        self.to_reader.send(lambda: self.signal(offset, value))
        self.to_hooks.send(lambda: [listen(record) for listen in list(self.listeners)])


class VirtualEmitter(Emitter):
    """Everything is appended at once, in order."""

    def __init__(self, log: VirtualLog) -> None:
        self._virtual = log

    def offer(self, record: SealedRecord) -> bool:
        self._virtual.append(record)
        return True

    async def room(self, timeout_s: float) -> bool:
        return True


class VirtualPulser(Pulser):
    """The real one, but for the producer."""

    log: VirtualLog

    async def _send(self, pulses: list[tuple[bytes, bytes]]) -> None:
        for _, value in pulses:
            self.log.pulses.send(lambda value=value: self.log.hear(value))  # type: ignore[misc]
