"""Subscribes to one engine's event publisher and makes one gapless order of publications and replays.

A subscriber alone can't know that it missed a message until the next one, nor that the engine was
restarted; the replay socket closes both holes. `receive` repairs what it can and reports what it can't;
`confirm` is the question behind an echo: "is what I hold all that you have published?".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

import zmq
import zmq.asyncio

from events.errors import KvledgerError
from events.hooks.engine_position import Anchor, EngineMessage, EnginePosition, Sighting, digest
from events.hooks.engine_recovery import Heartbeat, ReadHeartbeat
from events.hooks.engine_source import (
    Confirmation,
    Confirmed,
    Continuity,
    EngineRestarted,
    MessagesLost,
    NewEngineLife,
    NoAnswer,
    RestartSign,
    SourceItem,
)
from events.hooks.replay import ReplayAnswer, ReplayClient
from events.hooks.subscription import QUEUE_MESSAGES, Subscription, end

_YIELD_EVERY = 128
_LEAST_REPAIR_S = 0.5


class EngineAddressError(KvledgerError):
    """No socket can be made for the address; nobody has been asked whether there is an engine."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(f"{endpoint!r} is no address of an engine's socket")
        self.endpoint = endpoint


class ZmqSource:
    """One engine's event stream; used by one task at a time.

    `endpoint`, `topic` and `bind_all_interfaces` are the `Subscription`'s. Without `replay_endpoint` nothing
    can be repaired or confirmed.
    Enter it as an async context manager; the sockets belong to the running loop. What a cancelled call has
    taken is handed out by the next one.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None = None,
        topic: str = "",
        *,
        bind_all_interfaces: bool = False,
        repair_timeout_s: float = 2.0,
        repair_pause_s: float = 5.0,
        read_heartbeat: ReadHeartbeat | None = None,
        snapshot_question: bytes | None = None,
    ) -> None:
        self.subscription = Subscription(
            endpoint, topic, bind_all_interfaces=bind_all_interfaces, read_heartbeat=read_heartbeat
        )
        self.continuity = Continuity.UNASKED
        self._repair_timeout_s = repair_timeout_s
        self._repair_pause_s = repair_pause_s
        self._repair_from_s = 0.0
        self._snapshot_question = snapshot_question
        self._epoch: str | None = None
        self._position = EnginePosition()
        self._items: list[SourceItem] = []
        self._late_seq = -1
        self._former_life = False
        # Of its own: a name that doesn't resolve holds a context's thread up, and the subscription with it.
        self._replay_context = zmq.asyncio.Context()
        self._replay = (
            ReplayClient(replay_endpoint, context=self._replay_context)
            if replay_endpoint is not None
            else None
        )

    async def __aenter__(self) -> Self:
        """Raises EngineAddressError."""
        endpoint = self.subscription.endpoint
        try:
            self.subscription.open()
            if self._replay is not None:
                endpoint = self._replay.endpoint
                self._replay.connect()
        except zmq.ZMQError as error:
            self.close()
            raise EngineAddressError(endpoint) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all sockets. Idempotent; the source can't be used again."""
        self.subscription.close()
        if self._replay is not None:
            self._replay.close()
        end(self._replay_context)

    @property
    def has_replay(self) -> bool:
        """Whether confirmation is possible at all (`basis: published` rather than `unconfirmed`)."""
        return self._replay is not None

    @property
    def newest(self) -> EngineMessage | None:
        """The newest message taken in this engine life."""
        return self._position.newest

    def resume(self, anchor: Anchor) -> None:
        """Before the first call: a former reader held this record, so an engine that hasn't got it is another
        life. `continuity` tells once it is known; an `EngineRestarted` comes before the other life's items."""
        self._position.anchor = anchor

    def ended(self) -> None:
        """See `EngineSource`: also where the next life's numbers seem to go on, its history is asked for."""
        self._position.reset()
        self._late_seq, self._repair_from_s = -1, 0.0
        self._former_life = self._replay is not None

    async def receive(self, timeout_s: float, limit: int = 256) -> list[SourceItem]:
        """Return what came, in the engine's order; empty after `timeout_s` of silence.

        Repeats are left out. A hole is filled by replay before what follows it is returned, or reported
        as `MessagesLost` in its place; this takes at most `repair_timeout_s` more, and after a replay
        without answer no other is tried for `repair_pause_s`.
        """
        if self._items or await self.subscription.waiting(timeout_s):
            await self._take_queue(limit, asyncio.get_running_loop().time() + self._repair_timeout_s)
        return self._hand_out()

    async def replay(self, start: int, timeout_s: float) -> ReplayAnswer:
        """Ask for all records from `start` on; changes nothing here. Incomplete without a replay socket."""
        if self._replay is None:
            return ReplayAnswer(start, (), complete=False)
        return await self._replay.ask(start, timeout_s)

    async def snapshot(self, timeout_s: float) -> list[EngineMessage] | None:
        """The engine's own whole inventory, see `ReplayClient.snapshot`; None if it has none to give."""
        if self._replay is None or self._snapshot_question is None:
            return None
        return await self._replay.snapshot(self._snapshot_question, timeout_s)

    async def confirm(self, timeout_s: float) -> Confirmation:
        """Ask the engine whether what was handed out is all it has published.

        The caller has numbered all that `receive` returned. It numbers the returned items first, and
        may echo what it saw *before* this call only after `Confirmed`. What the subscription holds is taken
        first: the engine may not be able to replay it any more. The question starts at the newest
        record held, so that another life can't pass for this one by its numbers. With nothing held the
        question is for all records: that is how a late subscriber gets its history.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        await self._take_queue(QUEUE_MESSAGES, deadline_s)
        kind = await self._ask(deadline_s - loop.time())
        items = tuple(self._hand_out())
        if kind is NewEngineLife:
            return NewEngineLife(items)
        if kind is NoAnswer:
            return NoAnswer(items)
        newest = self._position.newest
        return Confirmed(None if newest is None else newest.seq, items)

    async def _ask(self, timeout_s: float) -> type[Confirmed | NewEngineLife | NoAnswer]:
        """One question and what it means; the records that came are taken."""
        if timeout_s <= 0:
            return NoAnswer
        held, anchor = self._position.newest, self._position.anchor
        start = 0 if held is None else held.seq if anchor is None else min(held.seq, anchor.seq)
        answer = await self.replay(start, timeout_s)
        if held is not None:
            sign = _sign(held.seq, digest(held.payload), answer)
            if sign is not None:
                await self._restart_behind_the_queue(sign)
                return NewEngineLife
        restarted = anchor is not None and await self._weigh_anchor(anchor, answer)
        if restarted and held is not None:
            return NewEngineLife
        self._take_all([record for record in answer.records if held is None or record.seq > held.seq])
        if answer.contradicted:
            await self._restart_behind_the_queue(RestartSign.OTHER_BYTES)
            return NewEngineLife
        if not answer.complete:
            return NoAnswer
        return NewEngineLife if restarted else Confirmed

    async def _weigh_anchor(self, anchor: Anchor, answer: ReplayAnswer) -> bool:
        """Whether the answer is of another life than the anchor; an incomplete one may leave that open."""
        sign = _sign(anchor.seq, anchor.digest, answer)
        if sign is None and not any(record.seq == anchor.seq for record in answer.records):
            return False
        self._position.anchor = None
        if sign is None:
            self.continuity = Continuity.SAME
            return False
        if not sign.proven:
            # What lies between was told as lost when it was passed; nothing more can be known.
            self.continuity = Continuity.UNKNOWABLE
            return False
        self.continuity = Continuity.OTHER
        await self._restart_behind_the_queue(sign, anchor.seq)
        return True

    async def _take_queue(self, limit: int, deadline_s: float) -> None:
        """Place what the subscription holds, at most `limit` messages."""
        loop = asyncio.get_running_loop()
        for number in range(limit):
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                return
            found = await self.subscription.take()
            if found is None:
                return
            if number % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)
            # What is taken must be placed, so its hole gets some time in any case.
            repair_s = min(self._repair_timeout_s, max(left_s, _LEAST_REPAIR_S))
            for item in found:
                match item:
                    case EngineMessage():
                        await self._accept(item, repair_s)
                    case Heartbeat():
                        await self._beat(item, repair_s)
                    case _:
                        self._items.append(item)

    async def _beat(self, heartbeat: Heartbeat, repair_s: float) -> None:
        """An engine that names its lives shows a new one at once, and the tail that was lost without waiting for
        the next message. What it says of its own is told to the reader, too."""
        another = self._epoch is not None and heartbeat.epoch != self._epoch
        if self._former_life and not another:
            return
        if another and not self._former_life and self._position.newest is not None:
            self._restart(RestartSign.NAMED)
        self._epoch, self._former_life = heartbeat.epoch, False
        if heartbeat.next_seq > self._position.next_seq:
            await self._repair(repair_s)
        self._items.append(heartbeat)

    async def _accept(self, message: EngineMessage, timeout_s: float) -> None:
        """Place one published message, repairing the hole before it if there is one."""
        if self._former_life:
            await self._accept_replayed(message, timeout_s)
            return
        match self._position.sight(message):
            case Sighting.KNOWN:
                self._late_seq = -1
                return
            case Sighting.NEXT:
                self._take_all((message,))
                return
            case Sighting.RESTARTED:
                self._restart(RestartSign.SEQ_REUSED)
            case Sighting.UNREMEMBERED:
                if await self._overtaken(message, timeout_s):
                    self._late_seq = message.seq
                    return
            case Sighting.AHEAD:
                pass
        await self._accept_behind_hole(message, timeout_s)

    async def _accept_behind_hole(self, message: EngineMessage, timeout_s: float) -> None:
        hole = not self._former_life and message.seq > self._position.next_seq
        if hole and await self._fill(timeout_s) is Confirmed:
            # All that the engine has published by now was taken. What isn't in it is none of this life's.
            return
        if self._former_life:
            await self._accept_replayed(message, timeout_s)
        elif self._position.sight(message) in {Sighting.NEXT, Sighting.AHEAD}:
            if message.seq > self._position.next_seq:
                self._position.doubt()
            self._take_all((message,))

    async def _accept_replayed(self, message: EngineMessage, timeout_s: float) -> None:
        """A restart was told by somebody else than the subscription, so that may still bring the former life's
        messages: none is taken until it brings one that the engine replays byte for byte. From there on it is the
        new life's. What is passed over here comes by replay, as the position stays."""
        if message.seq >= self._position.next_seq:
            await self._fill(timeout_s)
        if self._position.sight(message) is Sighting.KNOWN:
            self._former_life = False

    async def _fill(self, timeout_s: float) -> type[Confirmed | NewEngineLife | NoAnswer]:
        """Takes what replay gives behind the position; if it finds another life, that one's history."""
        outcome = await self._repair(timeout_s)
        return outcome if outcome is not NewEngineLife else await self._repair(timeout_s)

    async def _overtaken(self, message: EngineMessage, timeout_s: float) -> bool:
        """Whether a message below our newest one is of the same life: a replay was faster, and has told it as
        lost. If it isn't, all that was held is void."""
        if message.seq == self._late_seq + 1 and self._late_seq >= 0:
            return True
        outcome = await self._repair(timeout_s)
        if outcome is Confirmed and self._position.sight(message) is Sighting.UNREMEMBERED:
            return True
        if outcome is not NewEngineLife:
            self._restart(RestartSign.OLD_NUMBER)
        return False

    async def _repair(self, timeout_s: float) -> type[Confirmed | NewEngineLife | NoAnswer]:
        """Fill up by replay, unless the engine's replay was silent a short while ago."""
        loop = asyncio.get_running_loop()
        if self._replay is None or loop.time() < self._repair_from_s:
            return NoAnswer
        outcome = await self._ask(timeout_s)
        if outcome is NoAnswer:
            self._repair_from_s = loop.time() + self._repair_pause_s
        return outcome

    def _take_all(self, records: Sequence[EngineMessage]) -> None:
        for record in records:
            if record.seq > self._position.next_seq:
                self._items.append(MessagesLost(self._position.next_seq, record.seq - 1))
            self._position.take(record)
            self._items.append(record)

    def _hand_out(self) -> list[SourceItem]:
        items, self._items = self._items, []
        return items

    def _restart(self, sign: RestartSign, last_seq: int | None = None) -> None:
        newest = self._position.newest
        self._position.reset()
        self._late_seq = -1
        self._former_life = False
        self._items.append(EngineRestarted(sign, last_seq if newest is None else newest.seq))

    async def _restart_behind_the_queue(self, sign: RestartSign, last_seq: int | None = None) -> None:
        """As `_restart`, when replay told it: what the subscription still holds may be the old life's.

        The new life's part of it comes again by replay, as the position is 0 now.
        """
        try:
            await self.subscription.discard()
        finally:
            self._restart(sign, last_seq)
            # Not all of the old life's need have been there yet.
            self._former_life = True


def _sign(seq: int, known: bytes, answer: ReplayAnswer) -> RestartSign | None:
    """What the answer says of a record that we hold by number and digest; None: that it is the engine's, or
    nothing, as the answer is incomplete."""
    for record in answer.records:
        if record.seq == seq:
            return None if digest(record.payload) == known else RestartSign.OTHER_BYTES
    if answer.records and answer.records[0].seq > seq:
        return RestartSign.HISTORY_CUT
    return RestartSign.NO_RECORD if answer.complete else None
