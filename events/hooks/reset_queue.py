"""Who may empty its engine now: the queue of those that can only be reset, as `kv.signals` tells it. Pure.

Every hook that reads the topic makes the same queue of it, so that nobody needs to decide. A claim's place is the
offset at which it was first read; whoever has fewer claims before it than there are places is on turn. Of those that
are on turn at once, the last in the queue has counted all others: so there are never more than places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from events.model.signal import ResetTurn

Who = tuple[str, int]
CLAIMS_KEPT = 16_384


@dataclass(frozen=True, slots=True)
class ResetPace:
    """How gently a fleet is emptied. One in `share` of a model's streams is reset at once. A claim is repeated every
    `repeat_s`; one that isn't heard for `silent_s` is a dead hook's, one that resets for `turn_s` is passed over.
    Nobody goes before it has listened for `listen_s`. An engine that is in use is drained for `drain_s` at most, then
    serves for `rest_s` before it asks again. `per_hour`: how many resets a tenant may cause in one engine."""

    share: int = 8
    repeat_s: float = 2.0
    listen_s: float = 5.0
    silent_s: float = 15.0
    turn_s: float = 300.0
    drain_s: float = 120.0
    rest_s: float = 60.0
    per_hour: int = 6

    def places(self, streams: int) -> int:
        """How many of so many may be reset at once: always one."""
        return max(1, -(-streams // self.share))


@dataclass(slots=True)
class Claim:
    """`ticket` is its place; heard without a gap since `since_s`, last at `heard_s`; resets since `resets_s`."""

    nonce: bytes
    ticket: int
    since_s: float
    heard_s: float
    resets_s: float | None = None


class ResetQueue:
    """All claims that stand, by who made them. `now_s` is the caller's monotonic clock."""

    def __init__(self, pace: ResetPace) -> None:
        self._pace = pace
        self._claims: dict[Who, Claim] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def read(self, offset: int, turn: ResetTurn, now_s: float) -> None:
        """One record of the topic, in its order."""
        who = (turn.worker, turn.rank)
        claim = self._claims.get(who)
        if turn.state == "done":
            if claim is not None and claim.nonce == turn.nonce:
                del self._claims[who]
            return
        if claim is None or claim.nonce != turn.nonce:
            self._claims.pop(who, None)
            ticket = offset if turn.ticket is None else turn.ticket
            claim = self._claims[who] = Claim(turn.nonce, ticket, now_s, now_s)
            while len(self._claims) > CLAIMS_KEPT:
                del self._claims[next(iter(self._claims))]
        if now_s - claim.heard_s > self._pace.silent_s / 2:
            claim.since_s = now_s
        claim.heard_s = now_s
        if turn.state == "waits":
            claim.resets_s = None
        elif claim.resets_s is None:
            claim.resets_s = now_s

    def ticket(self, who: Who, nonce: bytes) -> int | None:
        """The place of this claim; None until it was read."""
        claim = self._claims.get(who)
        return claim.ticket if claim is not None and claim.nonce == nonce else None

    def heard(self, who: Who, nonce: bytes, now_s: float) -> bool:
        """Whether whoever made this claim has listened long enough, and still hears itself: who doesn't would
        not hear the others either."""
        claim = self._claims.get(who)
        if claim is None or claim.nonce != nonce:
            return False
        fresh = now_s - claim.heard_s <= self._pace.silent_s / 2
        return fresh and now_s - claim.since_s >= self._pace.listen_s

    def overdue(self, who: Who, nonce: bytes, now_s: float) -> bool:
        """Whether this claim has reset for so long that the others are about to pass it over."""
        claim = self._claims.get(who)
        if claim is None or claim.nonce != nonce or claim.resets_s is None:
            return False
        return now_s - claim.resets_s > self._pace.turn_s - self._pace.silent_s / 2

    def before(self, who: Who, rival: Callable[[Who], bool], now_s: float) -> int:
        """How many claims of rivals stand before this one, or reset already."""
        own = self._claims.get(who)
        if own is None:
            return len(self._claims)
        return sum(
            1
            for other, claim in self._claims.items()
            if other != who
            and (claim.ticket < own.ticket or claim.resets_s is not None)
            and self._counts(claim, now_s)
            and rival(other)
        )

    def _counts(self, claim: Claim, now_s: float) -> bool:
        if now_s - claim.heard_s > self._pace.silent_s:
            return False
        return claim.resets_s is None or now_s - claim.resets_s <= self._pace.turn_s
