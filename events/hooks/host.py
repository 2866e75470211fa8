"""All hooks of one process: they share one emitter, one tail of `kv.control`, one of `kv.signals`, one pulser.

async with HookHost(connection, keyring, enrolment) as host:
    hook = await host.add(HookIdentity("worker-0"), "life-1", port, translator)
    await hook.opened(timeout_s=10)
    hook.feed(batch, admitted_after=hook.installed)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Self

from events.errors import KvledgerError
from events.fold.registry import Registry
from events.hooks.client_task import ClientEndedError, again, guarded
from events.hooks.emitter import Emitter, EmitterLimits
from events.hooks.engine_port import EnginePort, Translator
from events.hooks.hook import Hook, HookIdentity, HookPace, HookServices
from events.hooks.pulse import Pulser
from events.hooks.registration import Registrar, process_identity
from events.hooks.reset_queue import ResetPace
from events.hooks.reset_turn import ResetTurns
from events.hooks.signal_tail import SignalTail
from events.hooks.signal_writer import SignalWriter
from events.hooks.stream import SealedRecord
from events.ids import Role
from events.kafka.connection import KafkaConnection, RawRecord
from events.kafka.control import ControlTail, ControlWriter
from events.keyring import KeyRing
from events.model.control import ControlRecord
from events.model.signal import ResyncRequested
from events.signing import Signer, verify

LOG = logging.getLogger(__name__)


class NoGenesisError(KvledgerError):
    """`kv.control` has no genesis record: the log was never set up (`kvledger topics ensure`, `kvledger up`)."""


@dataclass(frozen=True, slots=True)
class HostPace:
    """Intervals of a process' hooks; `genesis_s` is how long a log without genesis is waited for."""

    pulse_s: float = 0.2
    genesis_s: float = 10.0
    resets: ResetPace = field(default_factory=ResetPace)
    hook: HookPace = field(default_factory=HookPace)
    emitter: EmitterLimits = field(default_factory=EmitterLimits)


class HookHost:
    """An async context manager; leaving it closes all streams, flushes and ends every task.

    `enrolment` signs registrations. `wall_ms` and `monotonic_ns` are injected clocks. If one of its tasks
    fails, `failed` holds the error and the pulses of that hook, or of all if it was a shared task, end: the
    caller waits for `failure` beside its own work, and then ends the process.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        keyring: KeyRing,
        enrolment: Signer,
        *,
        pace: HostPace | None = None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.failed: BaseException | None = None
        self.registry = Registry(verify)
        self.emitter: Emitter
        self.hooks: dict[str, list[Hook]] = {}
        self._connection = connection
        self.keyring = keyring
        self._enrolment = enrolment
        self._pace = pace or HostPace()
        self._wall_ms = wall_ms
        self._monotonic_ns = monotonic_ns
        self._identity = process_identity()
        self._tasks: dict[Hook | None, asyncio.Task[None]] = {}
        self._failure = asyncio.Event()
        self._control: ControlTail
        self._writer: ControlWriter
        self._signals: SignalTail
        self._signal_writer: SignalWriter
        self._pulser: Pulser
        self._services: HookServices

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def installed(self) -> int:
        """Newest control offset that all hooks here have installed."""
        return self.registry.next_offset - 1

    async def failure(self) -> BaseException:
        """Waits for the first fault of a task here, and returns it: a truncated log, or a fault of this
        program. Nothing here can be relied on then."""
        await self._failure.wait()
        assert self.failed is not None
        return self.failed

    async def start(self) -> None:
        """Reads all of `kv.control` and starts what the hooks share.

        Raises LogUnavailableError if no broker answers, NoGenesisError if the log isn't set up.
        """
        self._control = ControlTail(self._connection, self.registry, monotonic_ns=self._monotonic_ns)
        self._control.listen(self._on_control)
        try:
            await self._await_genesis()
            self._writer = ControlWriter(
                self._connection,
                self.registry,
                signers={Role.ENROLMENT: self._enrolment},
                wall_ms=self._wall_ms,
            )
            await self._writer.start()
        except (KvledgerError, asyncio.CancelledError):
            await self._control.stop()
            raise
        self.emitter = Emitter(
            self._connection, limits=self._pace.emitter, lost=self._on_lost, truncated=self._on_truncated
        )
        self._signal_writer = SignalWriter(self._connection)
        turns = ResetTurns(
            self.registry,
            self._signal_writer.send,
            lambda: self._monotonic_ns() / 1e9,
            self._pace.resets,
        )
        self._signals = SignalTail(self._connection, self._on_resync, turns.read)
        self._pulser = Pulser(
            self._connection,
            newest_beacon=lambda: self._signals.newest,
            hooks=lambda: self.hooks,
            interval_s=self._pace.pulse_s,
            confirm_budget_s=0.6 * self._pace.pulse_s,
        )
        self._services = HookServices(
            emitter=self.emitter,
            registrar=Registrar(self._writer, self._control),
            registry=self.registry,
            keyring=self.keyring,
            monotonic_s=lambda: self._monotonic_ns() / 1e9,
            snapshot_name=lambda: secrets.token_hex(8),
            turns=turns,
        )
        self._start_task(None, self._run_shared())

    async def stop(self, timeout_s: float = 10.0) -> bool:
        """Closes every hook, flushes, ends all tasks; False if records were left behind. Idempotent."""
        for hooks in list(self.hooks.values()):
            for hook in list(hooks):
                await self.remove(hook)
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        flushed = await self.emitter.close(timeout_s)
        await self._pulser.close()
        await self._signal_writer.close()
        for stop in (self._signals.stop, self._control.stop, self._writer.stop):
            with contextlib.suppress(ClientEndedError):
                await guarded(stop())
        return flushed

    def make(
        self, identity: HookIdentity, engine_life: str, port: EnginePort, translator: Translator
    ) -> Hook:
        """A hook for one (worker, rank), which can be fed with what the engine did before; see `begin`."""
        return Hook(identity, engine_life, port, translator, self._services, self._pace.hook)

    def begin(self, hook: Hook) -> None:
        """The hook registers and runs from now on; `await hook.opened(…)` to wait for its epoch."""
        self.hooks.setdefault(hook.identity.worker, []).append(hook)
        self._start_task(hook, hook.run())

    async def add(
        self, identity: HookIdentity, engine_life: str, port: EnginePort, translator: Translator
    ) -> Hook:
        """Makes a hook and begins it."""
        hook = self.make(identity, engine_life, port, translator)
        self.begin(hook)
        return hook

    async def remove(self, hook: Hook, *, engine_ended: bool = False, silently: bool = False) -> None:
        """Ends one hook. `silently`: without a word, as a process that was killed. Idempotent."""
        hooks = self.hooks.get(hook.identity.worker, [])
        if hook in hooks:
            hooks.remove(hook)
            if not hooks:
                del self.hooks[hook.identity.worker]
        task = self._tasks.pop(hook, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await hook.close(engine_ended=engine_ended, silently=silently)

    async def _await_genesis(self) -> None:
        deadline_ns = self._monotonic_ns() + int(self._pace.genesis_s * 1e9)
        await self._control.catch_up()
        while not self.registry.log:
            if self._monotonic_ns() > deadline_ns:
                raise NoGenesisError("kv.control has no genesis record")
            await asyncio.sleep(0.2)
            await self._control.catch_up()

    async def _run_shared(self) -> None:
        async with asyncio.TaskGroup() as group:
            shared = (self._control.run, self._signals.run, self._signal_writer.run, self._pulser.run)
            for run in (*shared, self._watch_process):
                group.create_task(again(run))

    async def _watch_process(self) -> None:
        """A restored or cloned process must not go on in the epochs of the one it was copied from."""
        while True:
            await asyncio.sleep(self._pace.pulse_s)
            identity = process_identity()
            if identity != self._identity:
                self._identity = identity
                for hook in self._all():
                    hook.new_epoch()

    def _start_task(self, hook: Hook | None, work: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda done: self._on_done(hook, done))
        self._tasks[hook] = task

    def _on_done(self, hook: Hook | None, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        LOG.error("%s failed: %r", "a shared task" if hook is None else hook.identity, error)
        if hook is not None:
            hook.fail()
        if self.failed is None:
            self.failed = error
            self._failure.set()

    def _all(self) -> list[Hook]:
        return [hook for hooks in self.hooks.values() for hook in hooks]

    def _on_control(self, record: RawRecord, decoded: ControlRecord | None, why: str) -> None:
        del record
        if decoded is not None and not why:
            for hook in self._all():
                hook.control_moved()

    def _on_resync(self, request: ResyncRequested) -> None:
        for hook in self.hooks.get(request.worker, ()):
            hook.resync(request)

    def _on_truncated(self, partition: int) -> None:
        for hook in self._all():
            registration = None if hook.stream is None else self.registry.registration_of(hook.stream)
            if registration is not None and registration.body.partition == partition:
                hook.repair.ask()

    def _on_lost(self, record: SealedRecord) -> None:
        for hook in self.hooks.get(record.stream.worker, ()):
            if hook.stream == record.stream:
                hook.repair.ask()
