"""What `kvledger bridge` runs for one worker, here as an object that can be killed: a host and its bridges."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from events.hooks.bridge import Bridge
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import EngineBatch
from events.hooks.engine_port import Confirmation, Confirmed
from events.hooks.engine_stream import EngineStream
from events.hooks.hook import Hook, HookIdentity
from events.hooks.host import HookHost
from events.hooks.life_file import LifeFile
from events.hooks.zmq_source import ZmqSource
from events.kafka.connection import KafkaConnection
from events.keyring import KeyRing
from events.model.signal import Load
from events.signing import Signer
from kvledger.simulate.fleet_plan import MODEL
from kvledger.simulate.predecessor import ENDPOINT_SCHEME
from kvledger.simulate.truth import Truth
from kvledger.simulate.worker import SimWorker

ATTACH_S = 5.0


@dataclass(slots=True)
class _Rank:
    worker: SimWorker
    source: ZmqSource
    bridge: Bridge
    hook: Hook
    running: asyncio.Task[None]


class BridgeProcess:
    """One worker's bridge: every rank's source, bridge and hook on a host of their own.

    `folder` keeps the life files, as a bridge's home does: another process on the same folder may go on in
    the engine lives that this one was attached to.
    """

    def __init__(
        self,
        at: KafkaConnection,
        ring: KeyRing,
        enrolment: Signer,
        config: EngineConfig,
        folder: Path,
        truth: Truth,
    ) -> None:
        self.host = HookHost(at, ring, enrolment)
        self.histories: list[bool] = []
        self._ring = ring
        self._config = config
        self._folder = folder
        self._truth = truth
        self._ranks: list[_Rank] = []

    @property
    def hooks(self) -> list[Hook]:
        """Of all ranks attached."""
        return [rank.hook for rank in self._ranks]

    def check(self) -> BaseException | None:
        """The first fault of a task of this process; None while all is well."""
        if self.host.failed is not None:
            return self.host.failed
        for rank in self._ranks:
            if rank.running.done() and not rank.running.cancelled():
                return rank.running.exception()
        return None

    async def start(self, workers: Sequence[SimWorker]) -> None:
        """Attaches to all ranks of one worker; their hooks register, await `opened` of each.

        `histories` says for each whether the engine's whole history could be had.
        """
        await self.host.start()
        for worker in workers:
            await self._attach(worker)

    def speak(self) -> None:
        """From now on this process' hooks are the ones that the workers name."""
        for rank in self._ranks:
            rank.worker.hook = rank.hook

    def turn_deaf(self) -> None:
        """From now on its hooks hear nothing of `kv.control`: they go on in their epochs, superseded or not."""
        for rank in self._ranks:
            rank.hook.control_moved = lambda: None  # type: ignore[method-assign]

    async def kill(self) -> None:
        """Everything ends in the middle, without a word in the log. Idempotent."""
        await self._end(silently=True, engine_ended=False)
        await self.host.stop(0.0)

    async def stop(self, *, engine_ended: bool = False) -> None:
        """As on SIGTERM. Idempotent."""
        await self._end(silently=False, engine_ended=engine_ended)
        await self.host.stop()

    async def _attach(self, worker: SimWorker) -> None:
        publisher = worker.publisher
        assert publisher is not None, "only an engine with a publisher can be bridged"
        rank = worker.engine.rank
        source = ZmqSource(publisher.endpoint, publisher.replay_endpoint)
        await source.__aenter__()
        life_file = LifeFile(self._folder / f"{worker.name}-{rank}.json")
        bridge = Bridge(source, rank=rank, life_file=life_file)
        attachment = await bridge.attach(ATTACH_S)
        self.histories.append(attachment.from_birth)
        host = self.host
        stream = EngineStream(
            worker.name, rank, self._ring, self._config, bound_salts=lambda: host.registry.bound_salts
        )
        stream.open(attachment.life, from_birth=attachment.from_birth)
        identity = HookIdentity(worker.name, rank, f"{ENDPOINT_SCHEME}{worker.name}", MODEL)
        hook = host.make(identity, attachment.life, _Vouching(bridge, worker, self._truth), stream)
        _note_records(hook, worker)
        bridge.bind(hook, attachment)
        host.begin(hook)
        worker.hook = hook
        running = asyncio.create_task(bridge.run())
        self._ranks.append(_Rank(worker, source, bridge, hook, running))

    async def _end(self, *, silently: bool, engine_ended: bool) -> None:
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.running.cancel()
        await asyncio.gather(*(rank.running for rank in ranks), return_exceptions=True)
        for rank in ranks:
            await self.host.remove(rank.hook, silently=silently, engine_ended=engine_ended)
            if rank.worker.hook is rank.hook:
                rank.worker.hook = None
            rank.source.close()


class _Vouching:
    """The bridge as its hook's port; tells the truth what each pulse vouches for."""

    def __init__(self, bridge: Bridge, worker: SimWorker, truth: Truth) -> None:
        self._bridge = bridge
        self._worker = worker
        self._truth = truth
        self._confirmed_ns = -1
        self.capability = bridge.capability
        self.admission_known = bridge.admission_known
        self.remove = bridge.remove
        self.reset = bridge.reset
        self.oldest_running = bridge.oldest_running

    async def confirm(self, timeout_s: float) -> Confirmation:
        """What was published before the question is confirmed, as far as this basis goes."""
        asked_ns = self._truth.now_ns()
        answer = await self._bridge.confirm(timeout_s)
        if isinstance(answer, Confirmed):
            self._confirmed_ns = asked_ns
        return answer

    def load(self) -> Load | None:
        """Asked for each pulse."""
        if self._confirmed_ns >= 0:
            self._truth.vouch(self._worker.name, self._worker.engine.rank, self._confirmed_ns)
        return self._bridge.load()


def _note_records(hook: Hook, worker: SimWorker) -> None:
    """From now on the worker's book knows which record of the hook's tells which of its steps."""
    publisher, feed = worker.publisher, hook.feed
    assert publisher is not None

    def feed_and_note(batch: EngineBatch, admitted_after: int | None = None) -> None:
        stream, seq = hook.stream, hook.next_seq
        feed(batch, admitted_after)
        made_ns = publisher.made_ns(batch.raw_sha256)
        if made_ns is not None and stream is not None and hook.stream == stream and hook.next_seq > seq:
            worker.positions.note(stream.epoch, seq, made_ns)

    hook.feed = feed_and_note  # type: ignore[method-assign]
