"""One engine rank's hook: from the engine's batches to the records of its stream, epoch after epoch.

`feed` numbers at once and never waits; everything slow (registering, snapshots, deletions, confirmations)
runs beside it. The caller is told nothing of a broken log: the hook drops, burns the number, and repairs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from events.errors import KvledgerError
from events.fold.registry import Registry
from events.hooks.client_task import again
from events.hooks.echoing import Echoing
from events.hooks.emitter import Emitter
from events.hooks.emptying import Emptying
from events.hooks.engine_event import EngineBatch, EngineHash
from events.hooks.engine_port import Confirmed, EnginePort, Parts, Translation, Translator
from events.hooks.obey import Obedience
from events.hooks.obligation import Obligations
from events.hooks.outlet import Outlet
from events.hooks.reporting import EpochPace, EpochRegistrar, Reporting
from events.hooks.reset_turn import ResetTurns, Turn
from events.hooks.snapshot import Repair, RepairPace
from events.hooks.stream import Epoch
from events.ids import CANARY_WORKER, Alarm, Basis, Capability, Inventory, StreamKey
from events.keyring import KeyRing
from events.model.part import Closed, Drained, UnknownEvents
from events.model.signal import Echo, RankPulse, ResyncRequested

LOG = logging.getLogger(__name__)
STICKY_FAULTS = ("chain_break", "equivocation", "forked")
"""Faults of a stream that no snapshot heals: its hook begins another epoch. `forked`: the stream obeyed another
`kv.control` than the reader; registering shows whether this process has read one that no longer is."""


class ReservedWorkerError(KvledgerError):
    """The name is kvledger's own: its streams are in no answer and owe nothing. Give the worker another one."""

    def __init__(self, worker: str) -> None:
        super().__init__(f"{worker} is reserved for kvledger's own canary; give the worker another name")
        self.worker = worker


@dataclass(frozen=True, slots=True)
class HookIdentity:
    """Who the hook speaks for; `endpoint` and `model` are what a router uses and only told. Raises
    ReservedWorkerError for the canary's name."""

    worker: str
    rank: int = 0
    endpoint: str | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        if self.worker == CANARY_WORKER:
            raise ReservedWorkerError(self.worker)


@dataclass(frozen=True, slots=True)
class HookPace:
    """Intervals of one hook, in seconds."""

    statement_s: float = 30.0
    confirm_timeout_s: float = 2.0
    epoch: EpochPace = field(default_factory=EpochPace)
    repair: RepairPace = field(default_factory=RepairPace)


@dataclass(frozen=True, slots=True)
class HookServices:
    """What the hooks of one process share."""

    emitter: Emitter
    registrar: EpochRegistrar
    registry: Registry
    keyring: KeyRing
    monotonic_s: Callable[[], float]
    snapshot_name: Callable[[], str]
    turns: ResetTurns


class Hook:
    """Made, fed and run on one event loop; `events.hooks.host.HookHost` does the running."""

    def __init__(
        self,
        identity: HookIdentity,
        engine_life: str,
        port: EnginePort,
        translator: Translator,
        services: HookServices,
        pace: HookPace | None = None,
    ) -> None:
        self.identity = identity
        self.engine_life = engine_life
        self.fed_seq = -1
        self.alarm: Alarm | None = None
        """What every pulse says is wrong with the engine; set and taken back by whoever watches it."""
        self.draining = False
        """No new work should come, as the engine is to be emptied: every pulse says so."""
        self._port = port
        self._translator = translator
        self._services = services
        self._pace = pace or HookPace()
        self._echoing = Echoing(self._confirmed)
        self._statement_s = 0.0
        self.reporting = Reporting(
            self,
            services.registrar,
            services.emitter.room,
            pace=self._pace.epoch,
            monotonic_s=services.monotonic_s,
        )
        self.repair = Repair(
            self, services.emitter.room, pace=self._pace.repair, monotonic_s=services.monotonic_s
        )
        self._outlet = Outlet(
            services.emitter,
            services.registry,
            services.keyring,
            lambda hold_s: self.repair.ask(hold_s=hold_s),
        )
        self.obligations = Obligations(services.registry, services.keyring)
        self._turn = Turn(services.turns, (identity.worker, identity.rank), self.reconsider)
        self.emptying = Emptying(
            self,
            port,
            self._turn,
            self.obligations,
            pace=services.turns.pace,
            monotonic_s=services.monotonic_s,
        )
        self.obedience = Obedience(self, port, translator, self.obligations, self.emptying)

    # --- for whoever holds the engine ---------------------------------------------------------------

    @property
    def installed(self) -> int:
        """Newest control offset installed: what a request that the engine admits now is `admitted_after`."""
        return self._services.registry.next_offset - 1

    @property
    def log(self) -> str:
        """The id of the log whose offsets these are."""
        return self._services.registry.log

    @property
    def stream(self) -> StreamKey | None:
        """The open epoch's stream; None while registering."""
        return self._outlet.stream

    @property
    def next_seq(self) -> int:
        """Number of the open stream's next record; 0 while registering."""
        return self._outlet.position[0]

    @property
    def dropped(self) -> int:
        """Records whose numbers were burnt, since the start."""
        return self._outlet.dropped

    async def opened(self, timeout_s: float) -> bool:
        """Waits until an epoch is open; False if that took longer."""
        return await self.reporting.opened(timeout_s)

    def feed(self, batch: EngineBatch, admitted_after: int | None = None) -> None:
        """Numbers one batch of the engine, in its order. `admitted_after` is the control offset that was
        installed when the batch's blocks were admitted, None if nobody knows. A bridge that goes on beside this one
        may have told the engine a newer one than is installed here: older is claimed then, for what a record claims
        beyond its own position counts as unknown."""
        if admitted_after is not None:
            admitted_after = min(admitted_after, self.installed)
        translation = self._translator.translate(batch, admitted_after)
        self.fed_seq = batch.engine_seq
        if self.obligations.renewed and self._outlet.epoch is not None:
            self.obedience.opened()
        self.write_translation(translation)
        self.obedience.landed(translation.parts)

    def lost(self, first: int, last: int | None) -> None:
        """The engine's own records in between can't be had: its holders become partial. That is numbered in
        their place, so an agent's word that names one of them doesn't wait for it."""
        self.fed_seq = max(self.fed_seq, -1 if last is None else last)
        self._outlet.write((self._translator.lost(first, last),), {})

    def unknown(self, kind: str, length: int) -> None:
        """Something of the engine can't be read; the stream says so."""
        self._outlet.write((UnknownEvents(kind=kind, length=length),), {})

    def restarted(self, engine_life: str, *, ended: bool = False, born_after: int | None = None) -> None:
        """Another engine life begins, its memory empty; what is fed from now on is its own.

        `ended`: the caller knows that the old process is gone, which the old stream then states.
        `born_after`: a control offset that was installed before the new life began; None: all that is now.
        The same life again: nothing of it was fed yet and all will be, so its memory is known after all.
        """
        if ended:
            self._outlet.write((Closed(engine_ended=True),), {})
        # Else the old stream stays open and falls silent until the new epoch supersedes it: closed, it would
        # count no more, and what the new life holds meanwhile would be called absent.
        if engine_life == self.engine_life:
            self._translator.whole()
        self.engine_life = engine_life
        self.fed_seq = -1
        self.obligations.new_life(self.installed if born_after is None else born_after)
        self._translator.open(engine_life)
        self.new_epoch()

    def engine_ended(self) -> None:
        """The engine's process is gone, and nobody is in its place: the stream ends with that word, and no epoch
        is open until `restarted` names the next life."""
        self.emptying.rest()
        self._outlet.write((Closed(engine_ended=True),), {})
        self._outlet.shut()
        self._echoing.reset()
        self.reporting.end("the engine has ended, and nobody answers in its place yet")

    @property
    def doubtful(self) -> bool:
        """Whether a look at the engine's pool would teach something."""
        return self._translator.doubtful()

    def inspected(self, resident: Mapping[int, Mapping[EngineHash, int]]) -> None:
        """The engine's pool was looked at right after the last batch that was fed: what it shows holds."""
        self.write_translation(self._translator.inspected(resident))
        self.obedience.wake()

    def reachable_by(self, removal: Capability, *, admission_known: bool) -> None:
        """There is another way to the engine than the epoch has declared: another epoch begins. Nothing if it
        is the same."""
        if self._translator.reachable_by(removal, admission_known=admission_known):
            self.new_epoch()
            self.obedience.wake()

    def retire_profiles(self, adapter: str | None = None) -> None:
        """An adapter was loaded again under its name, or the weights were changed in place (None): the copies
        are void from here on. Call it before anything is computed with the new ones."""
        retired = self._translator.retire_profiles(adapter)
        if retired is not None:
            self.write_translation(retired)

    def drain(self) -> None:
        """A planned leave: no new work should be routed here."""
        self._outlet.write((Drained(),), {})

    def drop_next(self, count: int, *, repair_after_s: float = 0.0) -> None:
        """Loses the next `count` records after they have taken their numbers, as a full buffer would, and
        holds the repair back; for fault injection. Record 0 is never lost."""
        self._outlet.drop_next(count, repair_after_s)

    # --- for the process that runs it ---------------------------------------------------------------

    def new_epoch(self, *, contested: bool = False) -> None:
        """Ends the epoch here and has another registered; see `Reporting.renew`."""
        self._outlet.shut()
        self._echoing.reset()
        self.reporting.renew(contested=contested)

    def control_moved(self) -> None:
        """The registry has installed another record: an order, a nonce, or the end of this epoch."""
        registry, stream = self._services.registry, self.stream
        if stream is not None and (stream in registry.fenced or registry.superseded(stream)):
            if stream in registry.fenced:
                LOG.warning("%s is fenced: registering again", stream)
            else:
                LOG.warning(
                    "%s is superseded: another hook speaks for %s/%d; stop one of them. Registering again",
                    stream,
                    stream.worker,
                    stream.rank,
                )
            self.new_epoch(contested=True)
        self.obedience.wake()

    def reconsider(self) -> None:
        """What an order waits for may have come."""
        self.obedience.wake()

    def resync(self, request: ResyncRequested) -> None:
        """Somebody could not follow a stream of this process; one that isn't ours is none of our business."""
        if self.stream == StreamKey(request.worker, request.rank, request.epoch):
            if request.reason.startswith(STICKY_FAULTS):
                self.new_epoch(contested=True)
            else:
                self.repair.ask()

    async def run(self) -> None:
        """Registers, repairs and obeys until cancelled."""
        async with asyncio.TaskGroup() as group:
            for run in (self.reporting.run, self.repair.run, self.obedience.run):
                group.create_task(again(run))

    def fail(self) -> None:
        """A task of this hook is gone, so nobody obeys or repairs: it must not seem alive. Its stream ends
        without a word."""
        self._outlet.shut()
        self._turn.give_back()
        self.reporting.end()

    async def close(self, *, engine_ended: bool = False, silently: bool = False) -> None:
        """Ends the reporting, and says so unless `silently`. The caller flushes the emitter. Idempotent."""
        self._turn.give_back()
        await self._echoing.stop()
        if not silently:
            self._outlet.write((Closed(engine_ended=engine_ended),), {})
        self._outlet.shut()
        self.reporting.end()

    def echo(self, beacon: Echo) -> asyncio.Task[None] | None:
        """See `events.hooks.pulse.PulsingHook`."""
        return self._echoing.begin(beacon, ready=self.ready)

    def pulse(self) -> RankPulse | None:
        """See `events.hooks.pulse.PulsingHook`."""
        stream, (next_seq, prev) = self.stream, self._outlet.position
        if stream is None or next_seq == 0:
            return None
        return RankPulse(
            rank=self.identity.rank,
            epoch=stream.epoch,
            next_seq=next_seq,
            prev=prev,
            basis=self._echoing.basis,
            echo=self._echoing.newest,
            checksums=tuple(self._translator.checksums()),
            load=self._port.load(),
            alarm=self.alarm or (Alarm.DRAINING if self.draining else None),
        )

    def tick(self) -> None:
        """Writes a statement when one is due, and lets go of domains whose keys were destroyed."""
        self._retire()
        self._turn.tick()
        now_s = self._services.monotonic_s()
        if self.ready and now_s - self._statement_s >= self._pace.statement_s:
            self._statement_s = now_s
            statements = self._translator.statements()
            if statements:
                self._outlet.write((), statements)

    # --- for reporting, repair and obedience --------------------------------------------------------

    async def register_epoch(self, registrar: EpochRegistrar) -> Epoch | None:
        """See `events.hooks.reporting.ReportingHook`."""
        who, life = self.identity, self.engine_life
        epoch = await registrar.register(who.worker, who.rank, life, endpoint=who.endpoint, model=who.model)
        superseded = self._services.registry.superseded(epoch.stream)
        return None if superseded or self.engine_life != life else epoch

    def open_epoch(self, epoch: Epoch) -> bool:
        """See `events.hooks.reporting.ReportingHook`."""
        # What is still held of a destroyed domain is told by the snapshot, as unassigned.
        self._translator.retire()
        opened = self._translator.open(epoch.engine_life)
        if not self._outlet.open(epoch, opened):
            return False
        self._echoing.reset()
        self._statement_s = self._services.monotonic_s()
        empty = all(holder.inventory is Inventory.EMPTY for holder in opened.holders)
        if self._outlet.said_while_shut or not empty:
            self.repair.ask()
        self._outlet.said_while_shut = False
        self.obedience.opened()
        return True

    @property
    def ready(self) -> bool:
        """Whether an epoch is open and its stream has no hole that this hook knows of."""
        return self._outlet.epoch is not None and not self.repair.pending

    @property
    def epoch_no(self) -> int | None:
        epoch = self._outlet.epoch
        return epoch.epoch_no if epoch is not None else None

    def write(self, parts: Parts) -> bool:
        """Numbers these parts; False if a record was dropped or no epoch is open."""
        return self._outlet.write((), parts)

    def write_translation(self, translation: Translation) -> bool:
        """Numbers what a batch, a removal or a range means. Where the epoch can't say it, it ends, and the
        next one restates everything."""
        if translation.epoch_due and self._outlet.epoch is not None:
            LOG.info("%s declared a group otherwise than its engine uses it: registering again", self.stream)
            self.new_epoch()
        whole = self._outlet.write(tuple(translation.stream_events), translation.parts)
        if translation.snapshot_due and self._outlet.epoch is not None:
            self.repair.ask()
        return whole

    def restatement(self) -> Iterator[Translation]:
        """The inventory in ranges, each as of the moment at which it is taken."""
        self._retire()
        return self._translator.snapshot(self._services.snapshot_name())

    def repaired(self) -> None:
        """The stream is whole again; acks may have been in the hole."""
        self.obedience.opened()

    async def confirm(self) -> bool:
        """Whether all of the engine was numbered, in this epoch and without a hole, at some moment after
        this call began."""
        return await self._confirmed() is not None

    # --- inside -------------------------------------------------------------------------------------

    async def _confirmed(self) -> Basis | None:
        epoch = self._outlet.epoch
        outcome = await self._port.confirm(self._pace.confirm_timeout_s)
        if not isinstance(outcome, Confirmed) or epoch is None or self._outlet.epoch is not epoch:
            return None
        fed = outcome.upto is None or self.fed_seq >= outcome.upto
        return outcome.basis if fed and self.ready else None

    def _retire(self) -> None:
        if self._outlet.epoch is None:
            return
        retired = self._translator.retire()
        if retired is not None:
            LOG.warning("%s: a domain's keys are gone, its copies count as unassigned", self.stream)
            self._outlet.write(tuple(retired.stream_events), retired.parts)
            self._outlet.forget()
