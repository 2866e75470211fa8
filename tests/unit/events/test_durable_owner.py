"""Who owns a durable holder: one worker, until it can no longer speak; both registries say the same."""

from __future__ import annotations

from auditor.registry import ControlFold
from events.fold.quota import counts
from events.fold.registry import Registry
from events.ids import Role, StreamKey, Tier
from events.model.control import ControlBody, ExitAttested, Fenced, HolderDestroyed, HolderEnrolled
from events.signing import verify
from tests.support.log import ControlLog


class Both:
    """One control log under the index's registry and under the auditor's."""

    def __init__(self) -> None:
        self.log = ControlLog()
        self.index, self.audit = Registry(verify), ControlFold(verify)
        self.follow()

    def follow(self) -> None:
        for offset in range(self.index.next_offset, len(self.log.records)):
            value, signature = self.log.records[offset]
            _, why = self.index.fold(offset, value, signature)
            assert self.audit.feed(offset, value, signature) == why

    def say(self, body: ControlBody, role: Role) -> None:
        self.log.append(body, role)
        self.follow()

    def enrol(self, owner: str) -> str:
        self.say(HolderEnrolled(durable_id="s", tier=Tier.REMOTE, owner=owner), Role.ENROLMENT)
        named = self.index.durable_owners["s"].owner
        assert self.audit.stores.owners["s"] == named
        return named

    def register(self, worker: str, epoch: str, *, rank: int = 0, life: str = "life-1") -> None:
        self.log.register(worker, rank, epoch, life)
        self.follow()


def test_an_owner_that_was_never_registered_may_be_replaced() -> None:
    both = Both()
    assert [both.enrol("w0"), both.enrol("w1")] == ["w0", "w1"]


def test_a_standing_owner_stays_until_every_rank_of_it_is_fenced() -> None:
    both = Both()
    both.register("w0", "e0")
    both.register("w0", "e1", rank=1)
    assert both.enrol("w0") == "w0"
    assert both.enrol("w1") == "w0"
    both.say(Fenced(worker="w0", rank=0, epoch="e0", evidence="operator"), Role.CONTROL)
    assert both.enrol("w1") == "w0"
    both.say(Fenced(worker="w0", rank=1, epoch="e1", evidence="timeout"), Role.CONTROL)
    assert both.enrol("w1") == "w1"


def test_a_later_epoch_of_the_owner_keeps_the_store() -> None:
    both = Both()
    both.register("w0", "e0")
    both.enrol("w0")
    both.say(Fenced(worker="w0", rank=0, epoch="e0", evidence="timeout"), Role.CONTROL)
    both.register("w0", "e2")
    assert both.enrol("w1") == "w0"


def test_an_owner_whose_engine_ended_may_be_replaced() -> None:
    both = Both()
    both.register("w0", "e0")
    both.enrol("w0")
    ended = ExitAttested(worker="w0", engine_life="life-1", attester="bridge", evidence="exit 0")
    both.say(ended, Role.SUPERVISOR)
    assert both.enrol("w1") == "w1"


def test_usage_of_a_store_is_its_owners_newest_epochs_alone() -> None:
    both = Both()
    both.register("w0", "e0")
    both.register("w1", "e1")
    both.enrol("w0")
    owner, other = StreamKey("w0", 0, "e0"), StreamKey("w1", 0, "e1")
    assert (counts(both.index, owner, ["s"]), counts(both.index, other, ["s"])) == (True, False)
    assert counts(both.index, other)
    assert not counts(both.index, owner, ["nobody's"])
    ended = ExitAttested(worker="w0", engine_life="life-1", attester="bridge", evidence="exit 0")
    both.say(ended, Role.SUPERVISOR)
    assert (counts(both.index, owner), counts(both.index, owner, ["s"])) == (False, True)
    both.register("w0", "e2", life="life-2")
    assert not counts(both.index, owner, ["s"])
    both.say(HolderDestroyed(durable_id="s", evidence="shredded"), Role.SUPERVISOR)
    assert not counts(both.index, StreamKey("w0", 0, "e2"), ["s"])
