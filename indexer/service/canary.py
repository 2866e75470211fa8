"""A stream of kvledger's own that measures how stale this replica's view really is, all the time.

It changes at instants known on this process' monotonic clock, goes the way of every stream (kv.events, kv.pulse,
the fold), and is asked like every stream how old it says it is. Reported below measured is an alarm: the rule of
`docs/staleness.md` does not hold here. It holds no copy, is in no answer, no coverage and no list of workers, and
nothing waits for it: without an enrolment key, or while it is broken, lookups go on and the figures say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from aiokafka.errors import KafkaError

from events.codec import dump
from events.errors import KvledgerError
from events.hooks.registration import Registrar, SchemaNotEnabledError
from events.hooks.reporting import EpochPace
from events.hooks.stream import Epoch, SealedRecord, StreamWriter
from events.ids import (
    CANARY_WORKER,
    Basis,
    Capability,
    GroupKind,
    Inventory,
    Role,
    StreamStatus,
    Tier,
)
from events.kafka.connection import make_producer
from events.kafka.control import ControlWriter
from events.kafka.deadline import within
from events.model.batch import ControlPosition
from events.model.part import Closed, Group, HolderDeclared, Opened, Orphans, StreamEvent
from events.model.signal import Echo, Pulse, PulseChecksum, RankPulse
from events.topic import EVENTS, PULSE, SIGNATURE_HEADER, stream_record_key
from indexer.service.canary_gauge import CanaryGauge
from indexer.service.config import ServiceConfig
from indexer.service.feed import ViewFeed
from router_client.view import LocalView

LOG = logging.getLogger(__name__)
HOLDER = "canary"
PULSE_EVERY_S = 0.2
PULSES_PER_CHANGE = 2
SLOTS = 64
"""Canaries that a log can have at a time, each a rank of the reserved worker; a dead one's is taken over."""
SEND_TIMEOUT_S = 10.0
RETRY_S = 5.0
PACE = EpochPace(first_pause_s=RETRY_S, longest_pause_s=600.0, calm_s=60.0)
"""Between attempts that wrote to kv.control, whose length bounds every replica's memory and start."""
COMPLAIN_EVERY_NS = 60_000_000_000
RESTATED = Orphans(holder=HOLDER, orphans=0, unassigned=0)
"""What every change says: the record itself, its number and its hash are what changes."""


class CanaryLostError(KvledgerError):
    """This canary's stream is no longer its own, or no slot is free: it begins anew after a while."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A registered epoch whose record 0 isn't known to be in the log."""

    writer: StreamWriter
    records: list[SealedRecord]


CanaryState = Literal["off", "starting", "running", "broken"]


class Canary:
    """Writes the stream and its pulses, five records a second in all."""

    def __init__(
        self,
        config: ServiceConfig,
        view: LocalView,
        feed: ViewFeed,
        *,
        monotonic_ns: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        self.gauge = CanaryGauge(view, monotonic_ns=monotonic_ns)
        self.state: CanaryState = "off"
        self.why = "there is no enrolment key here" if config.canary else "it is switched off"
        self._config = config
        self._view = view
        self._feed = feed
        self._monotonic_ns = monotonic_ns
        self._wall_ms = wall_ms
        self._ending = asyncio.Event()
        self._complained_ns: int | None = None
        self._pulses = 0
        self._opening: Opening | None = None
        self._wrote_control = False
        self._pause_s = 0.0
        self._running_since_ns: int | None = None

    def report(self) -> dict[str, Any]:
        """For people and `/v1/watch`: state, why it isn't running, and the figures in milliseconds."""
        measured, reported = self.gauge.measured_ns(), self.gauge.reported_ns
        return {
            "state": self.state,
            "why": self.why or None,
            "measured_ms": None if measured is None else round(measured / 1e6, 3),
            "reported_ms": None if reported is None else round(reported / 1e6, 3),
            "changes": self.gauge.changes,
            "violations": self.gauge.violations,
        }

    async def close(self) -> None:
        """Lets `run` end by itself, with a last record that says so."""
        self._ending.set()

    async def run(self) -> None:
        """Until `close`. Whatever is away, it tries again; it never raises what would end the service."""
        if not self._config.canary or Role.ENROLMENT not in self._config.signers:
            return
        while not self._ending.is_set():
            self.state, self.why = "starting", ""
            self._wrote_control, self._running_since_ns = False, None
            try:
                await self._live()
            except (KvledgerError, KafkaError, TimeoutError, OSError) as error:
                await self._broken(f"{type(error).__name__}: {error}")
            except Exception as error:  # noqa: BLE001 - whatever it is, lookups don't need the canary
                await self._broken(type(error).__name__)
        self.state, self.why = "off", "the service ends"

    async def _broken(self, why: str) -> None:
        """Says so and waits: longer each time if attempts leave registrations behind, until one has stood."""
        self.state, self.why = "broken", why
        now_ns, since_ns = self._monotonic_ns(), self._running_since_ns
        if self._complained_ns is None or now_ns - self._complained_ns >= COMPLAIN_EVERY_NS:
            self._complained_ns = now_ns
            LOG.warning("the canary is broken: %s", why, extra={"action": "canary_broken"})
        if since_ns is not None and now_ns - since_ns > PACE.calm_s * 1e9:
            self._pause_s = 0.0
        if self._wrote_control:
            self._pause_s = PACE.after(self._pause_s)
        await self._pause(self._pause_s if self._wrote_control else RETRY_S)

    async def _live(self) -> None:
        while self._view.newest_beacon is None:
            if await self._pause(PULSE_EVERY_S):
                return
        # Only who listened for a while knows which canaries are silent.
        if await self._pause(self._view.limits.silent_after_ns / 1e9):
            return
        producer = make_producer(self._config.connection, client_id="kvledger-canary")
        try:
            await within(producer.start(), SEND_TIMEOUT_S)
            await self._sing(await self._opened_stream(producer), producer)
        finally:
            with contextlib.suppress(KafkaError, TimeoutError):
                await within(producer.stop(), SEND_TIMEOUT_S)

    async def _opened_stream(self, producer: Any) -> StreamWriter:
        """A stream whose record 0 is in the log. An epoch that didn't get so far before is gone on with: its
        record 0 is sent again as it was, which changes nothing if it arrived after all."""
        registry = self._view.registry
        for topic in (EVENTS, PULSE):
            name = self._config.connection.topic(topic)
            found = await within(producer.partitions_for(name), SEND_TIMEOUT_S)
            if not found.issuperset(range(max(1, registry.partitions))):
                raise CanaryLostError(f"{name} lacks partitions")
        opening = self._opening
        if opening is None or not self._stands(opening.writer.epoch):
            epoch = await self._register(self._free_slot())
            writer = StreamWriter(epoch, dict[str, bytes]().__getitem__)
            self._opening = opening = Opening(writer, self._sealed(writer, _opened(epoch.engine_life)))
        await self._send_all(producer, opening.records)
        self._opening = None
        return opening.writer

    def _stands(self, epoch: Epoch) -> bool:
        registry = self._view.registry
        return not registry.superseded(epoch.stream) and epoch.stream not in registry.fenced

    async def _register(self, slot: int) -> Epoch:
        writer = ControlWriter(
            self._config.connection,
            self._view.registry,
            signers={Role.ENROLMENT: self._config.signers[Role.ENROLMENT]},
            wall_ms=self._wall_ms,
        )
        try:
            await writer.start()
            life = f"canary-{secrets.token_hex(8)}"
            registrar = Registrar(writer, self._feed.control)
            self._wrote_control = True
            return await registrar.register(CANARY_WORKER, slot, life, endpoint=None, model=None)
        except SchemaNotEnabledError:
            self._wrote_control = False
            raise
        finally:
            await writer.stop()

    def _free_slot(self) -> int:
        registry, now_ns = self._view.registry, self._monotonic_ns()
        for slot in range(SLOTS):
            key = registry.current.get((CANARY_WORKER, slot))
            stream = self._view.streams.get(key) if key is not None else None
            if (
                key is None
                or key in registry.fenced
                or stream is None
                or stream.state.status is StreamStatus.CLOSED
                or stream.silent(now_ns, self._view.limits.silent_after_ns)
            ):
                return slot
        raise CanaryLostError(f"{SLOTS} canaries are alive already")

    async def _sing(self, writer: StreamWriter, producer: Any) -> None:
        epoch = writer.epoch
        self.gauge.begin(epoch.stream)
        while not self._ending.is_set():
            if not self._stands(epoch):
                raise CanaryLostError("another has taken its place, or it was fenced")
            self._pulses += 1
            if self._pulses % PULSES_PER_CHANGE == 0:
                await self._change(writer, producer, RESTATED)
            # Everything that was changed is acknowledged: what was read back until now may be echoed.
            await self._pulse(writer, producer)
            self.state, self.why = "running", ""
            if self._running_since_ns is None:
                self._running_since_ns = self._monotonic_ns()
            await self._listen(PULSE_EVERY_S)
        with contextlib.suppress(KafkaError, TimeoutError):
            await self._change(writer, producer, Closed(engine_ended=True))

    async def _change(self, writer: StreamWriter, producer: Any, event: StreamEvent) -> None:
        self.gauge.changing(writer.next_seq, self._monotonic_ns())
        await self._send_all(producer, self._sealed(writer, event))
        self.gauge.sample()

    def _sealed(self, writer: StreamWriter, event: StreamEvent) -> list[SealedRecord]:
        registry, sealed = self._view.registry, list[SealedRecord]()

        def take(record: SealedRecord) -> bool:
            sealed.append(record)
            return True

        position = ControlPosition(offset=max(0, registry.next_offset - 1), hash=registry.hash)
        writer.write((event,), {}, position, take)
        return sealed

    async def _send_all(self, producer: Any, records: list[SealedRecord]) -> None:
        for record in records:
            headers = [] if record.signature is None else [(SIGNATURE_HEADER, record.signature)]
            await self._send(producer, EVENTS, record.partition, record.key, record.value, headers)

    async def _pulse(self, writer: StreamWriter, producer: Any) -> None:
        beacon, epoch = self._view.newest_beacon, writer.epoch
        rank = RankPulse(
            rank=epoch.stream.rank,
            epoch=epoch.stream.epoch,
            next_seq=writer.next_seq,
            prev=writer.prev,
            basis=Basis.ENGINE,
            echo=None if beacon is None else Echo(offset=beacon[0], nonce=beacon[1]),
            checksums=(PulseChecksum(holder=HOLDER, group=0, count=0, checksum=bytes(16)),),
        )
        value = dump(Pulse(worker=CANARY_WORKER, ranks=(rank,)))
        key = stream_record_key(epoch.stream.worker, epoch.stream.rank)
        await self._send(producer, PULSE, epoch.partition, key, value, [])

    async def _send(
        self, producer: Any, topic: Any, partition: int, key: bytes, value: bytes, headers: list[Any]
    ) -> None:
        name = self._config.connection.topic(topic)
        sending = producer.send_and_wait(name, value, key=key, partition=partition, headers=headers)
        await within(sending, SEND_TIMEOUT_S)

    async def _listen(self, for_s: float) -> None:
        """Samples whenever the view got further, and at the end."""
        until_ns = self._monotonic_ns() + round(for_s * 1e9)
        while (left_s := (until_ns - self._monotonic_ns()) / 1e9) > 0 and not self._ending.is_set():
            await self._feed.wait_moved(left_s)
            self.gauge.sample()

    async def _pause(self, for_s: float) -> bool:
        """Whether the canary is to end."""
        with contextlib.suppress(TimeoutError):
            await within(self._ending.wait(), for_s)
        return self._ending.is_set()


def _opened(life: str) -> Opened:
    group = Group(index=0, kind=GroupKind.FULL, block_tokens=16)
    holder = HolderDeclared(name=HOLDER, tier=Tier.GPU, groups=(group,), inventory=Inventory.EMPTY)
    return Opened(
        engine_life=life,
        engine="kvledger-canary",
        engine_version="1",
        removal=Capability.NONE,
        admission_known=False,
        holders=(holder,),
    )
