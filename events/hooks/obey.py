"""Carries out deletions and invalidations in one engine, and acknowledges what is discharged.

Installing is the registry's (in offset order, before anything later is fed); here is what follows: remove,
confirm, look again, and only when nothing old is left and nothing admitted before still runs, the ack.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from events.hooks.engine_event import EngineHash
from events.hooks.engine_port import EnginePort, Parts, ScopedCopy, Translation, Translator
from events.hooks.obligation import Obligation, Obligations
from events.ids import Capability
from events.model.part import BlockInvalidated, BlockStored

LOG = logging.getLogger(__name__)

NO_PATH_CURE = "give the hook the engine's reset route, or end the engine and attest its exit"
PARTIAL_CURE = "reset the engine's cache, or end the engine and attest its exit"
REMOVE_TIMEOUT_S = 5.0
RESET_TIMEOUT_S = 20.0
PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class ObeyingHook(Protocol):
    """The hook, as far as obeying needs it."""

    @property
    def ready(self) -> bool:
        """Whether an epoch is open and the stream has no hole of its own making."""
        ...

    def write(self, parts: Parts) -> bool:
        """Numbers the parts now; False if the record was dropped."""
        ...

    def write_translation(self, translation: Translation) -> bool: ...

    async def confirm(self) -> bool:
        """Whether all of the engine was numbered at some moment after this call began."""
        ...


class Obedience:
    """Runs beside a hook; `wake` it when an order, a nonce, a hold's end or a late landing may be due."""

    def __init__(
        self, hook: ObeyingHook, port: EnginePort, translator: Translator, obligations: Obligations
    ) -> None:
        self.obligations = obligations
        self._hook = hook
        self._port = port
        self._translator = translator
        self._wake = asyncio.Event()
        self._suspicious = False
        self._failures = 0

    def wake(self) -> None:
        self._wake.set()

    def landed(self, parts: Parts) -> None:
        """Looks for stores older than an order that covers their domain, where admissions are known."""
        if not self._port.admission_known:
            return
        for domain, events in parts.items():
            newest = self.obligations.newest_covering(domain)
            if newest >= 0 and any(
                isinstance(event, BlockStored)
                and (event.admitted_after is None or event.admitted_after < newest)
                for event in events
            ):
                self._suspicious = True
                self._wake.set()

    def opened(self) -> None:
        """A new epoch has begun, or a hole was repaired: all acks, refusals and answers are due again, those
        of what is discharged already at once."""
        self.obligations.new_epoch()
        self._write_acks(self.obligations.installed())
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while not await self._settle():
                pause_s = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
                self._failures += 1
                await asyncio.sleep(pause_s)
            self._failures = 0

    async def _settle(self) -> bool:
        """One round; True if nothing is left to do until somebody wakes us."""
        if not self._hook.ready:
            return not self._pending()
        owed = self.obligations.open()
        if self._suspicious:
            owed += self.obligations.suspect()
        self._suspicious = False
        settled = True
        if owed:
            match self._port.capability:
                case Capability.EVICT_BLOCKS:
                    settled = await self._evict(owed)
                case Capability.RESET:
                    settled = await self._reset(owed)
                case Capability.NONE:
                    self._hook.write(self.obligations.refusals(owed, "no_delete_path", NO_PATH_CURE))
        return await self._answer_nonces() and settled

    def _pending(self) -> bool:
        return bool(self.obligations.open() or self.obligations.nonces() or self._suspicious)

    async def _evict(self, owed: Sequence[Obligation]) -> bool:
        for one in owed:
            old = self._old(one)
            if not old:
                continue
            result = await self._port.remove([copy.hash for copy in old], REMOVE_TIMEOUT_S)
            if result.refused is not None:
                self._hook.write(self.obligations.refusals([one], result.refused, result.cure))
                return False
            self._record(one, result.removed)
        if not await self._hook.confirm():
            return False
        if not self._translator.inventory_known():
            self._hook.write(self.obligations.refusals(owed, "engine_error", PARTIAL_CURE))
            return False
        done = [one for one in owed if not self._runs(one) and not self._old(one)]
        for one in owed:
            one.discharged = one in done
        self._write_acks(done)
        return len(done) == len(owed)

    async def _reset(self, owed: Sequence[Obligation]) -> bool:
        before = {one.number: self._covered(one) for one in owed}
        result = await self._port.reset(RESET_TIMEOUT_S)
        if result.refused is not None:
            self._hook.write(self.obligations.refusals(owed, result.refused, result.cure))
            return result.refused == "no_delete_path"
        for one in owed:
            for copy in before[one.number]:
                if copy.domain is not None:
                    one.removed[copy.domain] += 1
            one.discharged = True
            one.refused = None
        self._write_acks(owed)
        return True

    async def _answer_nonces(self) -> bool:
        due = self.obligations.nonces()
        if not due:
            return True
        if not await self._hook.confirm():
            return False
        for offset, one in due:
            if self._port.admission_known and self._old(one):
                self._suspicious = True
                return False
            if not self._write_acks([one], nonce=offset):
                return False
            self.obligations.answered(offset)
        return True

    def _covered(self, one: Obligation) -> Sequence[ScopedCopy]:
        return self._translator.in_scope(one.deletion.scope, self.obligations.domains(one))

    def _old(self, one: Obligation) -> list[ScopedCopy]:
        return [
            copy
            for copy in self._covered(one)
            if copy.admitted_after is None or copy.admitted_after < one.number
        ]

    def _runs(self, one: Obligation) -> bool:
        """Whether a request admitted before the order may still run; it may if nobody sees admissions."""
        if not self._port.admission_known:
            return True
        oldest = self._port.oldest_running()
        return oldest is not None and oldest < one.number

    def _record(self, one: Obligation, removed: Sequence[EngineHash]) -> None:
        translation = self._translator.removed(removed, one.number, reason=one.reason)
        for domain, events in translation.parts.items():
            for event in events:
                if isinstance(event, BlockInvalidated):
                    one.removed[domain] += len(event.ids)
        self._hook.write_translation(translation)

    def _write_acks(self, changed: Sequence[Obligation], nonce: int | None = None) -> bool:
        domains = {domain for one in changed if one.discharged for domain in self.obligations.domains(one)}
        if not domains:
            return True
        orphans, unassigned = self._translator.orphan_counts()
        return self._hook.write(self.obligations.acks(domains, orphans, unassigned, nonce))
