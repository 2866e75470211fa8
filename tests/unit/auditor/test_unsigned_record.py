"""What somebody without an epoch's key can do to its stream by writing to the topic: nothing that proves or refutes
wrongly, nothing that ends a life, and nothing that the hook's next epoch doesn't mend."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import pytest

from events.ids import Inventory, StreamKey, VerdictKind, VerdictReason
from events.model.part import BlockEvicted, Cleared, Closed, EngineLoss
from events.signing import Signer
from tests.support.audit_log import HookStub, RawEvent
from tests.support.bundle import OPERATOR, bundle, first_says, second_says
from tests.support.deletion_case import PENDING, PROVEN, REFUTED, UNPROVABLE, Fleet, reasons

STRANGER = Signer.from_seed(bytes(31) + b"s")
FAR = 1 << 40


def forger(hook: HookStub) -> HookStub:
    """Continues the hook's stream without its key and behind its back."""
    made = copy(hook)
    made.held, made.signer = {}, STRANGER
    return made


def ends(hook: HookStub) -> None:
    hook.write(Closed(engine_ended=True), signed=False)


def ends_by_another_key(hook: HookStub) -> None:
    hook.write(Closed(engine_ended=True), signed=True)


def leaves(hook: HookStub) -> None:
    hook.write(Closed(), signed=False)


def clears(hook: HookStub) -> None:
    hook.write(Cleared(holders=("gpu", "disk")), signed=False)


def evicts(hook: HookStub) -> None:
    ids = hook.log.hooks[0].held["gpu", "acme"]
    hook.write(parts={"acme": [BlockEvicted(holder="gpu", group=0, ids=tuple(ids))]}, signed=False)


def stores(hook: HookStub) -> None:
    hook.store("acme", 9, admitted=0)


def loses(hook: HookStub) -> None:
    hook.write(EngineLoss(first_missing=0), signed=False)


def jumps(hook: HookStub) -> None:
    hook.seq = FAR
    hook.write(signed=False)


def spoils(hook: HookStub) -> None:
    value = hook.write(signed=False).value.replace(b'"events":[]', b'"evils":[]')
    hook.log.events[hook.partition][-1] = RawEvent(value, None)


FORGED: list[Callable[[HookStub], None]] = [
    ends, ends_by_another_key, leaves, clears, evicts, stores, loses, jumps, spoils,
]  # fmt: skip


def both_say(fleet: Fleet) -> VerdictKind:
    made = bundle(fleet.log, fleet.request)
    first = first_says(made, OPERATOR.public_key)
    assert first == second_says(made, OPERATOR.public_key)
    return VerdictKind(first)


@pytest.mark.parametrize("forge", FORGED)
def test_a_forged_record_proves_nothing_and_the_hooks_next_epoch_mends_it(
    forge: Callable[[HookStub], None],
) -> None:
    fleet = Fleet()
    forge(forger(fleet.a))
    fleet.finish(fleet.b)
    assert both_say(fleet) is PENDING
    held = fleet.a.held
    fleet.a.obey(fleet.request)
    fleet.close()
    assert both_say(fleet) is not PROVEN
    assert not fleet.verdict().counterexamples
    heir = fleet.log.hook("w0", life="life-1").open(inventory=Inventory.PARTIAL)
    heir.held = held
    heir.snapshot()
    fleet.finish(heir, fleet.b)
    assert both_say(fleet) is PROVEN


@pytest.mark.parametrize("forge", [ends, ends_by_another_key])
def test_an_end_that_the_epochs_key_did_not_sign_is_no_end_and_hides_nothing(
    forge: Callable[[HookStub], None],
) -> None:
    fleet = Fleet()
    forge(forger(fleet.a))
    fleet.finish(fleet.b)
    case = fleet.log.evidence(fleet.request).streams[
        fleet.log.evidence(fleet.request).registry.newest("w0", 0).stream
    ]
    assert (case.closed_seq, case.ended_seq, case.endings.counted.get("closed", 0)) == (None, None, 0)
    assert sum(map(len, case.fold.tables.places.values())) == 3
    verdict = fleet.verdict()
    assert VerdictReason.SIGNATURE_INVALID in reasons(verdict)
    assert VerdictReason.MISSING_ACK not in reasons(verdict)


def test_a_signed_record_behind_it_makes_no_end_of_an_unsigned_one() -> None:
    fleet = Fleet()
    fleet.a.write(Closed(engine_ended=True), signed=False)
    fleet.a.write(parts={"acme": [fleet.a.statement("acme")]})
    fleet.finish(fleet.b)
    assert both_say(fleet) is PENDING


def test_a_rival_of_a_record_before_the_end_costs_that_end_until_it_is_attested() -> None:
    fleet = Fleet()
    rival = forger(fleet.a)
    fleet.a.write(Closed(engine_ended=True))
    stores(rival)
    fleet.finish(fleet.b)
    assert both_say(fleet) is UNPROVABLE
    fleet.log.attest(fleet.a)
    fleet.close(fleet.b)
    assert both_say(fleet) is PROVEN


@pytest.mark.parametrize("admitted", [0, None])
def test_a_landing_that_no_signed_record_vouches_for_refutes_nothing_and_is_mended(
    admitted: int | None,
) -> None:
    fleet = Fleet()
    fleet.finish()
    held = fleet.a.held
    forger(fleet.a).store("acme", 1, admitted=admitted)
    assert both_say(fleet) is (UNPROVABLE if admitted is None else PENDING)
    fleet.a.say_state()
    fleet.a.say_state()
    assert both_say(fleet) is UNPROVABLE
    assert not fleet.verdict().counterexamples
    heir = fleet.log.hook("w0", life="life-1").open(inventory=Inventory.PARTIAL)
    heir.held = held
    heir.snapshot()
    fleet.finish(heir, fleet.b)
    assert both_say(fleet) is PROVEN


def test_an_ack_in_a_workers_name_makes_nothing_late() -> None:
    fleet = Fleet()
    held = fleet.a.held
    forger(fleet.a).ack(fleet.request, signed=True)
    fleet.a.store("acme", 1, admitted=0)
    heir = fleet.log.hook("w0", life="life-1").open(inventory=Inventory.PARTIAL)
    heir.held = held
    heir.snapshot()
    heir.store("acme", 4, admitted=0)
    fleet.finish(heir, fleet.b)
    assert both_say(fleet) is PROVEN


def test_a_statement_in_a_workers_name_diverges_from_nothing() -> None:
    fleet = Fleet()
    forged = forger(fleet.a)
    forged.write(parts={"acme": [forged.statement("acme", claimed=[fleet.old[0]])]}, signed=False)
    heir = fleet.log.hook("w0", life="life-1").open(inventory=Inventory.PARTIAL)
    heir.held = fleet.a.held
    heir.snapshot()
    fleet.finish(heir, fleet.b)
    assert not fleet.log.evidence(fleet.request).streams[heir_of(fleet)].fold.divergences
    assert both_say(fleet) is PROVEN


def heir_of(fleet: Fleet) -> StreamKey:
    return fleet.log.evidence(fleet.request).registry.newest("w0", 0).stream


def test_what_a_signed_record_vouches_for_refutes_also_behind_numbers_that_the_hook_burnt() -> None:
    fleet = Fleet()
    fleet.finish()
    fleet.a.store("acme", 1, admitted=0)
    fleet.a.write(lost=True)
    fleet.a.seq += 2
    fleet.a.say_state()
    assert both_say(fleet) is REFUTED


def test_a_chain_that_breaks_before_a_signature_vouches_for_nothing_before() -> None:
    fleet = Fleet()
    fleet.finish()
    fleet.a.store("acme", 1, admitted=0)
    fleet.a.write(prev=bytes(32), signed=True)
    fleet.a.say_state()
    assert both_say(fleet) is UNPROVABLE
    assert VerdictReason.SIGNATURE_INVALID in reasons(fleet.verdict())
