"""Tells the truth what hooks of other processes vouch for, by reading their pulses and the beacons they echo.

A pulse's echo says that everything its engine published before that beacon was written is told. The broker
stamps both records as it appends them, by the same clock, so what a pulse confirms is known to a millisecond.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Container

from events.codec import decode_pulse, decode_signal
from events.errors import KvledgerError
from events.kafka.connection import KafkaConnection, LogTail, LogUnavailableError, RawRecord
from events.model.signal import Beacon
from events.topic import PULSE, SIGNALS
from kvledger.simulate.truth import Truth

log = logging.getLogger(__name__)
BEACONS_KEPT = 10_000
RETRY_S = 0.2
_NS_PER_MS = 1_000_000


class PulseWatch:
    """Run it beside a fleet for the workers named. It reads from the ends that it finds, and again from there
    after the broker was away."""

    def __init__(
        self,
        connection: KafkaConnection,
        partitions: int,
        truth: Truth,
        workers: Container[str],
        *,
        wall_ms: Callable[[], int],
    ) -> None:
        self._connection = connection
        self._truth = truth
        self._workers = workers
        self._wall_ms = wall_ms
        self._pulses, self._signals = connection.topic(PULSE), connection.topic(SIGNALS)
        self._where = {(self._pulses, number): 0 for number in range(partitions)} | {(self._signals, 0): 0}
        self._beacons: OrderedDict[int, tuple[bytes, int]] = OrderedDict()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            tail = LogTail(self._connection, self._where)
            try:
                async with asyncio.timeout(20):
                    await tail.start()
                    for (topic, partition), end in (await tail.end_offsets()).items():
                        tail.seek(topic, partition, end)
                while True:
                    # Beacons first: a pulse that came with its beacon in one fetch confirms it.
                    records = await tail.fetch(timeout_ms=100)
                    for record in sorted(records, key=lambda record: record.topic != self._signals):
                        self._take(record)
            except (LogUnavailableError, TimeoutError) as error:
                log.warning("pulses are not seen for a moment: %s", error)
                await asyncio.sleep(RETRY_S)
            finally:
                await tail.stop()

    def _take(self, record: RawRecord) -> None:
        try:
            if record.topic == self._signals:
                signal = decode_signal(record.value)
                if isinstance(signal, Beacon):
                    self._beacons[record.offset] = signal.nonce, self._monotonic_ns(record.timestamp_ms)
                    if len(self._beacons) > BEACONS_KEPT:
                        self._beacons.popitem(last=False)
                return
            pulse = decode_pulse(record.value)
        except KvledgerError:
            return
        if pulse.worker not in self._workers:
            return
        for rank in pulse.ranks:
            beacon = None if rank.echo is None else self._beacons.get(rank.echo.offset)
            known = beacon is not None and rank.echo is not None and beacon[0] == rank.echo.nonce
            confirmed_ns = beacon[1] if known and beacon is not None else -1
            self._truth.vouch(pulse.worker, rank.rank, confirmed_ns)

    def _monotonic_ns(self, broker_ms: int) -> int:
        """One machine: the broker's wall clock and ours are one, whatever it shows."""
        return self._truth.now_ns() - (self._wall_ms() - broker_ms) * _NS_PER_MS
