"""Carries out deletions and invalidations in one engine, and acknowledges what is discharged.

Installing is the registry's (in offset order, before anything later is fed); here is what follows: remove,
confirm, look again, and only when nothing old is left and nothing admitted before still runs, the ack.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from events.hooks.deletion_scope import is_old
from events.hooks.emptying import Emptying
from events.hooks.engine_event import EngineHash
from events.hooks.engine_port import EnginePort, Parts, ScopedCopy, Translation, Translator
from events.hooks.obligation import Obligation, Obligations
from events.ids import Capability
from events.kafka.deadline import within
from events.model.part import BlockInvalidated, BlockStored, DomainEvent, RequestStanding

LOG = logging.getLogger(__name__)

NO_PATH_CURE = "give the hook the engine's reset route, or end the engine and attest its exit"
PARTIAL_CURE = "reset the engine's cache, or end the engine and attest its exit"
OTHER_TIER_CURE = "end the engine and attest its exit: a reset leaves other tiers as they are"
REMOVE_TIMEOUT_S = 5.0
REMOVED_AT_ONCE = 512
"""Hashes of one question, so that an engine which steps in between is not silent to others for long."""
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
        self,
        hook: ObeyingHook,
        port: EnginePort,
        translator: Translator,
        obligations: Obligations,
        emptying: Emptying,
    ) -> None:
        self.obligations = obligations
        self._hook = hook
        self._port = port
        self._translator = translator
        self._emptying = emptying
        self._wake = asyncio.Event()
        self._order = asyncio.Event()
        self._landed: set[str] = set()
        self._failures = 0

    def wake(self) -> None:
        self._order.set()
        self._wake.set()

    def landed(self, parts: Parts) -> None:
        """Looks for stores that may bring back what an order of their domain deletes. Where admissions are
        unknown, what was computed here is new; the orders that aren't behind a barrier are open anyway."""
        suspects = self._translator.foreign_landings()
        if self._port.admission_known:
            suspects = {domain for domain, events in parts.items() if self._brings_old(domain, events)}
        for domain in suspects:
            if self.obligations.newest_covering(domain) >= 0:
                self._landed.add(domain)
                self._wake.set()

    def _brings_old(self, domain: str, events: Sequence[DomainEvent]) -> bool:
        newest = self.obligations.newest_covering(domain)
        return any(
            isinstance(event, BlockStored) and is_old(event.admitted_after, newest) for event in events
        )

    def opened(self) -> None:
        """A new epoch has begun, or a hole was repaired: all acks, refusals and answers are due again, the
        acks at once. What a durable holder kept from before isn't known then: nothing is discharged."""
        self.obligations.new_epoch()
        if not self._translator.durable_known():
            for one in self.obligations.installed():
                one.discharged = False
        self._write_acks(self.obligations.installed())
        self.wake()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while not await self._settle():
                pause_s = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
                self._failures += 1
                self._order.clear()
                await self._ordered(pause_s)
            self._failures = 0

    async def _ordered(self, pause_s: float) -> None:
        """A pause, which a new order ends."""
        try:
            await within(self._order.wait(), pause_s)
        except TimeoutError:
            return

    async def _settle(self) -> bool:
        """One round; True if nothing is left to do until somebody wakes us."""
        if not self._hook.ready:
            return not self._pending()
        if self._landed:
            # The log is told before anything is done about it.
            self._write_acks([])
        owed = self.obligations.open()
        settled = True
        if not owed or self._port.capability is not Capability.RESET:
            self._emptying.rest()
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
        return bool(self.obligations.open() or self.obligations.nonces() or self._landed)

    def _returned(self) -> list[Obligation]:
        """Orders whose old copies are back, as of now: they aren't discharged any more."""
        landed, self._landed = self._landed, set()
        back = [one for one in self.obligations.suspect(landed) if self._any_old(one)]
        for one in back:
            one.discharged = False
        return back

    async def _evict(self, owed: Sequence[Obligation]) -> bool:
        for one in owed:
            # Two copies of one hash, in two groups, are one name to the engine.
            old = list(dict.fromkeys(copy.hash for copy in self._old(one)))
            for start in range(0, len(old), REMOVED_AT_ONCE):
                some = old[start : start + REMOVED_AT_ONCE]
                result = await self._port.remove(some, REMOVE_TIMEOUT_S, request=one.number)
                if result.refused is not None:
                    self._hook.write(self.obligations.refusals([one], result.refused, result.cure))
                    return False
                self._record(one, result.removed)
        if not await self._hook.confirm():
            return False
        if not self._translator.inventory_known():
            self._hook.write(self.obligations.refusals(owed, "engine_error", PARTIAL_CURE))
            return False
        done = [one for one in owed if not self._runs(one) and not self._any_old(one)]
        for one in done:
            one.discharged, one.refused = True, None
        self._write_acks(done)
        return len(done) == len(owed)

    async def _reset(self, owed: Sequence[Obligation]) -> bool:
        """One reset for all orders that aren't behind one yet. It discharges only what it has emptied: an
        order stays open while something old, come back or never reset, is held, and is refused while nobody
        knows what another tier holds."""
        settled = await self._clear([one for one in owed if not one.barrier])
        behind = [one for one in owed if one.barrier]
        known = self._translator.inventory_known()
        before = {one.number: (one.told, one.refused) for one in behind}
        for one in behind:
            one.discharged = known and not self._any_old(one)
            if one.discharged:
                one.refused = None
        if not known:
            self.obligations.refusals(behind, "no_delete_path", OTHER_TIER_CURE)
        self._write_acks([one for one in behind if before[one.number] != (one.discharged, one.refused)])
        return settled and (not known or all(one.discharged for one in behind))

    async def _clear(self, owed: Sequence[Obligation]) -> bool:
        """Resets and raises the barrier; False if that is to be tried again."""
        if not owed:
            self._emptying.rest()
            return True
        if not self._emptying.allowed(owed):
            # It may take long: the log is told that the order is installed, and what it finds.
            self._write_acks([one for one in owed if one.told is None])
            if self._emptying.cure:
                # What the others' blocks are in use for is why it may not be emptied now.
                self._hook.write(self.obligations.refusals(owed, "blocks_in_use", self._emptying.cure))
            return False
        before = {one.number: self._covered(one) for one in owed}
        result = await self._emptying.empty(owed)
        if result.refused is not None:
            self._hook.write(self.obligations.refusals(owed, result.refused, result.cure))
            return result.refused == "no_delete_path"
        for one in owed:
            emptied = {
                (copy.domain, copy.holder, copy.group, copy.block)
                for copy in before[one.number]
                if copy.holder in result.holders
            }
            one.removed.update(domain for domain, *_ in emptied if domain is not None)
            one.barrier, one.refused = True, None
        return True

    async def _answer_nonces(self) -> bool:
        due = self.obligations.nonces()
        if not due:
            return True
        if not await self._hook.confirm():
            return False
        for offset, one in due:
            if self._any_old(one):
                one.discharged = False
                self._write_acks([one])
                return False
            if not self._write_acks([one], nonce=offset):
                return False
            self.obligations.answered(offset)
        return True

    def _covered(self, one: Obligation) -> Sequence[ScopedCopy]:
        return self._translator.in_scope(one.deletion.scope, self.obligations.domains(one))

    def _old(self, one: Obligation) -> Iterator[ScopedCopy]:
        scope, domains = one.deletion.scope, self.obligations.domains(one)
        return self._translator.old(one.number, scope, domains, barrier=one.barrier)

    def _any_old(self, one: Obligation) -> bool:
        return any(True for _ in self._old(one))

    def _left(self, one: Obligation) -> Mapping[str, RequestStanding]:
        scope, domains = one.deletion.scope, self.obligations.domains(one)
        return self._translator.standing(one.number, scope, domains, one.removed, barrier=one.barrier)

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
        """Acks of every domain that these orders cover, or that an old copy came back to, each over all its
        orders."""
        domains = {
            domain for one in (*changed, *self._returned()) for domain in self.obligations.domains(one)
        }
        if not domains:
            return True
        orphans, unassigned = self._translator.orphan_counts()
        return self._hook.write(self.obligations.acks(domains, self._left, orphans, unassigned, nonce))
