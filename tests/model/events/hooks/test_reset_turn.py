"""Whose turn it is to empty its engine: never too many at once, nobody waits for ever, the dead are passed over."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from events.fold.registry import Registry
from events.fold.registry_state import Registration
from events.hooks.reset_queue import ResetPace
from events.hooks.reset_turn import ResetTurns, Turn
from events.ids import StreamKey
from events.model.control import Registered
from events.model.signal import ResetTurn
from events.signing import verify

PACE = ResetPace()
LAG_S = 4
"""Reading is never further behind than this: below what a hook must hear of itself to go."""


def registry_of(workers: int, models: int = 1) -> Registry:
    registry = Registry(verify)
    for number in range(workers):
        body = Registered(
            worker=f"w{number}",
            rank=0,
            epoch="e0",
            engine_life=f"life-{number}",
            public_key=bytes(32),
            partition=0,
            model=f"m{number % models}",
        )
        stream = StreamKey(body.worker, 0, body.epoch)
        registry.registrations[stream] = Registration(number, body, bytes(32))
        registry.current[body.worker, 0] = stream
    return registry


@dataclass
class Member:
    """One process with one hook; `read` is how much of the topic it has taken."""

    turns: ResetTurns
    turn: Turn
    read: int = 0
    wants: bool = False
    resets_s: float | None = None
    alive: bool = True
    done: int = 0


@dataclass
class Fleet:
    """A topic, and hooks that read it each at its own pace."""

    workers: int
    models: int = 1
    now_s: float = 0.0
    topic: list[tuple[float, ResetTurn]] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    most: int = 0

    def __post_init__(self) -> None:
        registry = registry_of(self.workers, self.models)
        for number in range(self.workers):
            turns = ResetTurns(registry, self._send, lambda: self.now_s, PACE)
            self.members.append(Member(turns, Turn(turns, (f"w{number}", 0), lambda: None)))

    @property
    def places(self) -> int:
        return PACE.places(-(-self.workers // self.models))

    def _send(self, turn: ResetTurn) -> None:
        self.topic.append((self.now_s, turn))

    def read(self, member: Member, upto: int) -> None:
        for offset in range(member.read, upto):
            member.turns.read(offset, self.topic[offset][1])
        member.read = max(member.read, upto)

    def step(self, lags: list[int], reset_takes_s: float = 0.0) -> None:
        """A second: everybody alive reads, repeats its claim, and goes if it may."""
        self.now_s += 1
        for number, member in enumerate(self.members):
            if not member.alive:
                continue
            upto = len(self.topic)
            lag_s = lags[number % len(lags)]
            while upto > member.read and self.topic[upto - 1][0] > self.now_s - lag_s:
                upto -= 1
            self.read(member, upto)
            member.turn.tick()
            if member.resets_s is not None and self.now_s - member.resets_s >= reset_takes_s:
                member.resets_s, member.wants = None, False
                member.done += 1
                member.turn.give_back()
            elif member.wants and member.resets_s is None and member.turn.take():
                member.resets_s = self.now_s
            self.count()

    def count(self) -> None:
        by_model = [0] * self.models
        for number, member in enumerate(self.members):
            by_model[number % self.models] += member.alive and member.resets_s is not None
        self.most = max(self.most, *by_model)
        assert self.most <= self.places


@settings(max_examples=25, deadline=None)
@given(
    workers=st.integers(2, 20),
    lags=st.lists(st.integers(0, LAG_S), min_size=1, max_size=20),
    wants=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 19)), max_size=30),
    takes_s=st.integers(0, 20),
    dies=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 19)), max_size=3),
)
def test_never_more_than_one_in_eight_at_once_and_everybody_alive_gets_its_turn(
    workers: int, lags: list[int], wants: list[tuple[int, int]], takes_s: int, dies: list[tuple[int, int]]
) -> None:
    fleet = Fleet(workers)
    for second in range(90):
        for at, number in wants:
            if at == second:
                fleet.members[number % workers].wants = True
        for at, number in dies:
            if at == second:
                fleet.members[number % workers].alive = False
        fleet.step(lags, takes_s)
    for _ in range(40 * (takes_s + 20)):
        fleet.step(lags, takes_s)
        if not any(member.wants for member in fleet.members if member.alive):
            break
    assert not [member for member in fleet.members if member.alive and member.wants]


def test_a_whole_fleet_goes_in_turns_and_uses_every_place() -> None:
    fleet = Fleet(17)
    for member in fleet.members:
        member.wants = True
    while not all(member.done for member in fleet.members):
        fleet.step([0], 5.0)
        assert fleet.now_s < 300
    assert (fleet.most, fleet.places) == (3, 3)


def test_engines_of_another_model_are_nobodys_replacement_and_go_at_once() -> None:
    fleet = Fleet(4, models=4)
    for member in fleet.members:
        member.wants = True
    fleet.step([0], 5.0)
    assert all(member.resets_s is not None for member in fleet.members)
    assert not fleet.topic, "whoever is alone asks nobody"


def test_one_that_hangs_is_passed_over_after_the_bound_though_it_goes_on_claiming() -> None:
    fleet = Fleet(2)
    stuck, other = fleet.members
    stuck.wants = True
    while stuck.resets_s is None:
        fleet.step([0], 1e9)
    other.wants = True
    began_s = fleet.now_s
    while not other.turn.take():
        fleet.now_s += 1
        for member in fleet.members:
            fleet.read(member, len(fleet.topic))
            member.turn.tick()
        assert fleet.now_s - began_s < PACE.turn_s + 10
    assert fleet.now_s - began_s > PACE.turn_s - 10


def test_one_that_was_passed_over_does_not_go_on_beside_the_next() -> None:
    fleet = Fleet(2)
    stuck, other = fleet.members
    stuck.wants = other.wants = True
    while other.resets_s is None:
        # It asks again and again, as one whose requests don't end.
        fleet.step([0], 1e9)
        assert fleet.now_s < PACE.turn_s + 60
        if stuck.resets_s is not None and not stuck.turn.take():
            stuck.resets_s = None


def test_one_that_resets_and_hears_itself_no_more_stops() -> None:
    fleet = Fleet(2)
    one, _ = fleet.members
    one.wants = True
    while one.resets_s is None:
        fleet.step([0], 1e9)
    assert one.turn.take()
    began_s = fleet.now_s
    while one.turn.take():
        fleet.now_s += 1
        one.turn.tick()
        # By then it is dead to the others, and one of them may go.
        assert fleet.now_s - began_s < PACE.silent_s - LAG_S


def test_a_claim_that_its_hook_does_not_ask_for_is_passed_over_and_keeps_its_place() -> None:
    fleet = Fleet(3)
    absent, second, third = fleet.members
    absent.wants = True
    fleet.step([0], 1e9)
    # Its stream is not open, or has a hole: it can empty nothing.
    absent.wants = False
    second.wants = third.wants = True
    began_s = fleet.now_s
    while second.resets_s is None:
        fleet.step([0], 1e9)
        assert fleet.now_s - began_s < 4 * PACE.silent_s
    absent.wants = True
    for _ in range(int(PACE.listen_s) + 3):
        fleet.step([0], 1e9)
    second.resets_s, second.wants = None, False
    second.turn.give_back()
    while absent.resets_s is None:
        fleet.step([0], 1e9)
        assert third.resets_s is None


def test_who_hears_nobody_not_even_itself_waits() -> None:
    fleet = Fleet(2)
    one, other = fleet.members
    one.wants = True
    while one.resets_s is None:
        fleet.step([0], 1e9)
    fleet.read(other, len(fleet.topic))
    assert not other.turn.take()
    for _ in range(600):
        # The topic can't be read any more: the other's claim grows old, and so does one's own.
        fleet.now_s += 1
        other.turn.tick()
        assert not other.turn.take()
    assert "its turn" in other.turn.why


def test_a_claim_made_before_one_came_is_heard_of_by_its_repeats() -> None:
    for phase in range(4):
        fleet = Fleet(2)
        early, late = fleet.members
        early.wants = True
        while early.resets_s is None:
            fleet.step([0], 1e9)
        for _ in range(phase):
            fleet.step([0], 1e9)
        # It begins to read the topic at its end, as a hook does.
        late.read = len(fleet.topic)
        late.wants = True
        for _ in range(30):
            fleet.step([0], 1e9)
        assert late.resets_s is None
