"""Which engine life a bridge believes to be attached to, and what its orders owe there; over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path

from events.fold.registry import Registry
from events.hooks.bridge import Attachment, Bridge
from events.hooks.engine_event import EngineBatch, EngineHash
from events.hooks.engine_port import Confirmed, Unanswered
from events.hooks.engine_recovery import EngineSnapshot
from events.hooks.engine_source import ForeignTopic, UnreadableFrames
from events.hooks.life_file import LifeFile
from events.hooks.obligation import Obligations
from events.hooks.zmq_source import ZmqSource
from events.ids import Capability
from events.signing import verify
from tests.support.fake_engine import FakeEngine

LONG_S = 30.0
NAMES = count()


class Fed:
    """What a bridge says to its hook, in order. Its orders are those that `owes` names."""

    def __init__(self, owes: tuple[int, ...] = ()) -> None:
        self.said: list[str] = []
        self.installed = 100
        self.log = "log-1"
        self.obligations = Obligations(Registry(verify), ())
        self.discharged: set[int] = set()
        self.owes = owes
        self.obligations.discharged = lambda: sorted(self.discharged)  # type: ignore[method-assign]
        self.obligations.restore = self._restore  # type: ignore[method-assign]
        self.obligations.new_life = self._new_life  # type: ignore[method-assign]

    def _restore(self, discharged: Iterable[int]) -> None:
        self.discharged.update(discharged)

    def _new_life(self, installed_before_birth: int) -> None:
        self.discharged = {number for number in self.owes if number <= installed_before_birth}

    def feed(self, batch: EngineBatch, admitted_after: int | None = None) -> None:
        assert admitted_after is None
        self.said.append(f"fed {batch.engine_seq}")

    def lost(self, first: int, last: int | None) -> None:
        self.said.append(f"lost {first}-{'' if last is None else last}")

    def unknown(self, kind: str, length: int) -> None:
        assert length >= 0
        self.said.append(f"unknown {kind}")

    @property
    def doubtful(self) -> bool:
        raise AssertionError("there is no agent")

    def inspected(self, resident: Mapping[int, Mapping[EngineHash, int]]) -> None:
        raise AssertionError("there is no agent")

    def reachable_by(self, removal: Capability, *, admission_known: bool) -> None:
        raise AssertionError("there is no agent")

    def restarted(self, engine_life: str, *, born_after: int | None = None) -> None:
        assert born_after is not None
        self._new_life(born_after)
        self.said.append(f"life {engine_life} after {born_after}")

    def engine_ended(self) -> None:
        self.said.append("ended")


class Attached:
    """One bridge process: a source, a bridge, and what it fed."""

    def __init__(self, source: ZmqSource, bridge: Bridge, fed: Fed, attachment: Attachment) -> None:
        self.source = source
        self.bridge = bridge
        self.fed = fed
        self.attachment = attachment


async def attached(
    engine: FakeEngine,
    file: Path,
    *,
    owes: tuple[int, ...] = (),
    attach_s: float = LONG_S,
    replay: str | None = None,
    ended: Callable[[str], bool] = lambda _: False,
) -> Attached:
    names = (f"life-{next(NAMES)}" for _ in range(20))
    source = ZmqSource(engine.endpoint, replay or engine.replay_endpoint, repair_timeout_s=0.2)
    await source.__aenter__()
    bridge = Bridge(source, life_file=LifeFile(file), make_life=lambda: next(names))
    attachment = await bridge.attach(attach_s, ended=ended)
    fed = Fed(owes)
    bridge.bind(fed, attachment)
    return Attached(source, bridge, fed, attachment)


async def remembered(one: Attached) -> None:
    """Runs the bridge until it has written its life down, then ends it as a kill would."""
    assert isinstance(await one.bridge.confirm(LONG_S), Confirmed)
    one.bridge._remember(asyncio.get_running_loop().time() + 10)
    one.source.close()


def tokens(*ids: int) -> list[int]:
    return [token for one in ids for token in [one] * 16]


async def test_the_same_life_goes_on_and_keeps_only_what_it_has_discharged(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        await engine.complete(tokens(1))
        first = await attached(engine, tmp_path / "life", owes=(3, 5))
        assert first.fed.discharged == set()
        first.fed.discharged = {3}
        await remembered(first)
        await engine.complete(tokens(2))
        second = await attached(engine, tmp_path / "life", owes=(3, 5))
        assert second.attachment.life == first.attachment.life
        assert (second.attachment.from_birth, second.fed.said) == (True, ["fed 0", "fed 1"])
        assert second.fed.discharged == {3}
        second.source.close()


async def test_a_restart_while_the_bridge_was_away_is_another_life_that_owes_nothing_older(
    tmp_path: Path,
) -> None:
    async with FakeEngine() as engine:
        await engine.complete(tokens(1))
        first = await attached(engine, tmp_path / "life", owes=(3, 500))
        await remembered(first)
        await engine.restart()
        for number in range(3):
            await engine.complete(tokens(7 + number))
        second = await attached(engine, tmp_path / "life", owes=(3, 500))
        assert second.attachment.life != first.attachment.life
        assert second.attachment.proven_new
        assert second.fed.said == ["fed 0", "fed 1", "fed 2"]
        assert second.fed.discharged == {3}
        second.source.close()


async def test_without_an_answer_nothing_is_discharged_and_a_restart_shows_later(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        await engine.complete(tokens(1))
        first = await attached(engine, tmp_path / "life", owes=(3, 5))
        first.fed.discharged = {5}
        await remembered(first)
        await engine.restart()
        await engine.complete(tokens(2))
        engine.faults.silent_replay = True
        second = await attached(engine, tmp_path / "life", owes=(3, 5), attach_s=0.2)
        assert (second.attachment.life, second.attachment.from_birth) == (first.attachment.life, False)
        assert second.fed.discharged == {5}
        assert isinstance(await second.bridge.confirm(0.2), Unanswered)
        engine.faults.silent_replay = False
        while not isinstance(await second.bridge.confirm(LONG_S), Confirmed):
            pass
        (life,) = [said for said in second.fed.said if said.startswith("life")]
        assert life.endswith("after 100")
        assert second.fed.said[-1] == "fed 0"
        assert second.fed.discharged == {3, 5}
        second.source.close()


async def test_the_same_life_that_answers_late_is_whole_after_all(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        await engine.complete(tokens(1))
        first = await attached(engine, tmp_path / "life", owes=(3,))
        await remembered(first)
        engine.faults.silent_replay = True
        second = await attached(engine, tmp_path / "life", owes=(3,), attach_s=0.2)
        engine.faults.silent_replay = False
        assert isinstance(await second.bridge.confirm(LONG_S), Confirmed)
        assert second.fed.said == [f"life {first.attachment.life} after -1", "fed 0"]
        assert second.fed.discharged == set()
        second.source.close()


async def test_a_buffer_that_begins_later_makes_a_life_of_which_little_is_known(tmp_path: Path) -> None:
    async with FakeEngine(buffer_steps=10) as engine:
        await engine.complete(tokens(1))
        first = await attached(engine, tmp_path / "life", owes=(3,))
        assert isinstance(await first.bridge.confirm(LONG_S), Confirmed)
        engine.faults.drop_publications = 300
        for number in range(300):
            await engine.store(tokens(number + 5))
        while not isinstance(await first.bridge.confirm(LONG_S), Confirmed):
            pass
        # Perhaps it is one life that ran ahead, so its orders are owed as before and its memory isn't empty.
        assert first.fed.said[1].endswith("after -1")
        assert first.fed.said[2:4] == ["lost 0-", "lost 0-290"]
        assert len(first.fed.said) == 14
        assert first.fed.discharged == set()
        await remembered(first)
        for number in range(30):
            await engine.store(tokens(number + 900))
        second = await attached(engine, tmp_path / "life", owes=(3,))
        assert (second.attachment.from_birth, second.attachment.proven_new) == (False, False)
        assert second.fed.said[0] == "lost 0-320"
        assert second.fed.discharged == set()
        second.source.close()


async def test_an_attested_end_makes_whoever_answers_another_life(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        await engine.complete(tokens(1))
        first = await attached(engine, tmp_path / "life")
        await remembered(first)
        second = await attached(engine, tmp_path / "life", ended=first.attachment.life.__eq__)
        assert second.attachment.life != first.attachment.life
        assert "ended" not in second.fed.said
        second.source.close()


async def test_after_an_attested_end_nobody_is_made_up_who_does_not_answer(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        await engine.complete(tokens(1))
        first = await attached(engine, tmp_path / "life")
        await remembered(first)
        engine.faults.silent_replay = True
        second = await attached(engine, tmp_path / "life", attach_s=0.2, ended=first.attachment.life.__eq__)
        assert second.fed.said == ["ended"]
        assert isinstance(await second.bridge.confirm(0.2), Unanswered)
        engine.faults.silent_replay = False
        assert isinstance(await second.bridge.confirm(LONG_S), Unanswered)
        assert [said.split()[0] for said in second.fed.said] == ["ended", "life", "fed"]
        assert isinstance(await second.bridge.confirm(LONG_S), Confirmed)
        assert len(second.fed.said) == 3
        second.source.close()


async def test_a_life_after_an_end_has_its_history_even_where_its_numbers_go_on(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        one = await attached(engine, tmp_path / "life")
        intake = one.bridge._intake
        while not one.fed.said:
            await engine.complete(tokens(1))
            await intake.feed(await one.source.receive(0.05))
        old = intake.taken_seq
        intake.engine_ended()
        one.fed.said.clear()
        # The next process' first messages come before the subscription has reached it.
        engine._buffer.clear()
        engine._next_seq = 0
        engine.faults.drop_publications = old + 1
        for number in range(old + 2):
            await engine.complete(tokens(100 + number))
        while not one.fed.said:
            await intake.feed(await one.source.receive(0.05))
        assert one.fed.said[0].startswith("life")
        assert one.fed.said[1:] == [f"fed {seq}" for seq in range(old + 2)]
        one.source.close()


async def test_what_is_no_engines_message_is_no_new_life(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        await engine.complete(tokens(1))
        one = await attached(engine, tmp_path / "life")
        intake = one.bridge._intake
        intake.engine_ended()
        await intake.feed([UnreadableFrames(1), ForeignTopic("another")])
        assert not [said for said in one.fed.said if said.startswith("life")]
        assert intake.vacant
        one.source.close()


async def test_nothing_is_confirmed_before_anything_was_received(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        one = await attached(engine, tmp_path / "life", owes=(3,))
        assert (one.attachment.from_birth, one.bridge.heard) == (True, False)
        for _ in range(3):
            assert isinstance(await one.bridge.confirm(LONG_S), Unanswered)
        assert one.fed.discharged == set()
        await engine.complete(tokens(1))
        assert isinstance(await one.bridge.confirm(LONG_S), Confirmed)
        assert one.fed.said == ["fed 0"]
        assert one.fed.discharged == {3}
        # That this engine's events come through is known now: a restart that has published nothing is empty.
        await engine.restart()
        while not isinstance(await one.bridge.confirm(LONG_S), Confirmed):
            pass
        assert [said for said in one.fed.said if said.startswith("life")] == one.fed.said[1:]
        assert len(one.fed.said) == 2
        one.source.close()


async def test_records_of_another_rank_are_not_taken_for_this_one_s(tmp_path: Path) -> None:
    async with FakeEngine(rank=1) as engine:
        await engine.complete(tokens(1))
        one = await attached(engine, tmp_path / "life")
        assert one.fed.said == ["unknown rank", "lost 0-0"]
        assert isinstance(await one.bridge.confirm(LONG_S), Unanswered)
        assert one.bridge.counts.wrong_rank == 1
        one.source.close()


async def test_a_batch_that_can_t_be_translated_is_a_hole_and_ends_nothing(tmp_path: Path) -> None:
    class Refusing(Fed):
        def feed(self, batch: EngineBatch, admitted_after: int | None = None) -> None:
            if batch.engine_seq == 0:
                raise ValueError
            super().feed(batch, admitted_after)

    async with FakeEngine() as engine:
        await engine.complete(tokens(1))
        await engine.complete(tokens(2))
        source = ZmqSource(engine.endpoint, engine.replay_endpoint)
        async with source:
            bridge = Bridge(source, life_file=LifeFile(tmp_path / "life"))
            fed = Refusing()
            bridge.bind(fed, await bridge.attach(LONG_S))
            assert fed.said == ["unknown untranslatable", "lost 0-0", "fed 1"]
            assert bridge.counts.failed == 1
            fed.said.clear()
            # So is one of the engine's own snapshot.
            told = [EngineBatch(seq, None, None, (), b"") for seq in (0, 2)]
            bridge._intake.take(EngineSnapshot(3, tuple(told)))
        assert fed.said == ["unknown untranslatable", "lost 0-", "fed 2"]
        assert bridge.counts.failed == 2
