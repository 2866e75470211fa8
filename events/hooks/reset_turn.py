"""A hook's own turn to empty its engine: it claims a place, repeats that, and gives it back."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Literal

from events.fold.registry import Registry
from events.hooks.reset_queue import ResetPace, ResetQueue, Who
from events.ids import CANARY_WORKER
from events.model.signal import ResetTurn


class ResetTurns:
    """One for a process. `send` puts a record into `kv.signals`, soon and perhaps in vain: it is repeated."""

    def __init__(
        self,
        registry: Registry,
        send: Callable[[ResetTurn], None],
        monotonic_s: Callable[[], float],
        pace: ResetPace | None = None,
    ) -> None:
        self.pace = pace or ResetPace()
        self.registry = registry
        self.send = send
        self.monotonic_s = monotonic_s
        self.queue = ResetQueue(self.pace)
        self._waiting: dict[Who, Callable[[], None]] = {}

    def read(self, offset: int, turn: ResetTurn) -> None:
        """One record of `kv.signals`. When somebody is done, whoever waits here looks again."""
        self.queue.read(offset, turn, self.monotonic_s())
        if turn.state == "done":
            for wake in list(self._waiting.values()):
                wake()

    def wait(self, who: Who, wake: Callable[[], None] | None) -> None:
        """`wake` is called when somebody is done; None: no more."""
        if wake is None:
            self._waiting.pop(who, None)
        else:
            self._waiting[who] = wake

    def rivals(self, who: Who) -> frozenset[Who]:
        """The streams that could serve instead of this one: registered for the same model, not fenced, of an engine
        that isn't known to have ended. Itself included."""
        model = self._model(who)
        return frozenset(other for other in self.registry.current if self._stands(other, model)) | {who}

    def _model(self, who: Who) -> str | None:
        registration = self.registry.registration_of(self.registry.current[who]) if self._known(who) else None
        return None if registration is None else registration.body.model

    def _known(self, who: Who) -> bool:
        return who in self.registry.current

    def _stands(self, who: Who, model: str | None) -> bool:
        stream = self.registry.current[who]
        if who[0] == CANARY_WORKER or stream in self.registry.fenced or self.registry.ended(stream):
            return False
        return self._model(who) == model


class Turn:
    """One hook's. `why` says what it waits for; empty if it waits for nothing. `behind`: others are before it."""

    def __init__(self, turns: ResetTurns, who: Who, wake: Callable[[], None]) -> None:
        self.why, self.behind = "", False
        self._turns = turns
        self._who = who
        self._wake = wake
        self._nonce: bytes | None = None
        self._state: Literal["waits", "resets"] = "waits"
        self._said_s = 0.0
        self._asked_s = 0.0

    def take(self) -> bool:
        """Whether the engine may be emptied now. Claims a place if it has none; keeps it until `give_back`. Ask again
        for as long as it is being emptied: a turn that the others pass over is over here, too, and sooner."""
        turns, now_s = self._turns, self._turns.monotonic_s()
        self._asked_s = now_s
        if self._nonce is not None and turns.queue.overdue(self._who, self._nonce, now_s):
            self.give_back()
        heard = self._nonce is not None and turns.queue.heard(self._who, self._nonce, now_s)
        if self._state == "resets" and self._nonce is not None:
            if heard:
                return True
            self._state = "waits"
        rivals = turns.rivals(self._who)
        places = turns.pace.places(len(rivals))
        if self._nonce is None:
            if places >= len(rivals):
                # Nobody to wait for, and nobody who would wait.
                self.why, self.behind = "", False
                return True
            self._nonce, self._state = secrets.token_bytes(16), "waits"
            turns.wait(self._who, self._wake)
            self._say(now_s)
        ahead = turns.queue.before(self._who, rivals.__contains__, now_s)
        if heard and ahead < places:
            self._state, self.why, self.behind = "resets", "", False
            self._say(now_s)
            return True
        self.behind = ahead >= places
        self.why = f"its turn: {places} of {len(rivals)} engines are reset at once, {ahead} are before it"
        return False

    def tick(self) -> None:
        """Repeats the claim when that is due. Whoever can't go meanwhile, as its stream isn't open or has a hole, does
        not ask: the others aren't kept waiting by its claim, which keeps its place."""
        now_s, pace = self._turns.monotonic_s(), self._turns.pace
        unasked = self._state == "waits" and now_s - self._asked_s > 2 * pace.silent_s
        if self._nonce is not None and not unasked and now_s - self._said_s >= pace.repeat_s:
            self._say(now_s)

    def give_back(self) -> None:
        """It is done, or nothing is to be done any more. Idempotent."""
        self.why, self.behind = "", False
        if self._nonce is not None:
            self._send("done")
            self._nonce = None
            self._turns.wait(self._who, None)

    def _say(self, now_s: float) -> None:
        self._said_s = now_s
        self._send(self._state)

    def _send(self, state: Literal["waits", "resets", "done"]) -> None:
        assert self._nonce is not None
        worker, rank = self._who
        ticket = self._turns.queue.ticket(self._who, self._nonce)
        self._turns.send(ResetTurn(worker=worker, rank=rank, nonce=self._nonce, ticket=ticket, state=state))
