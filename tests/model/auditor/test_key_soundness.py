"""Verdicts on stores whose keys are destroyed, held against what could really still be read in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from auditor.registry import ControlFold
from events.ids import VerdictKind
from tests.support.audit_fault import NONE, Faults
from tests.support.key_simulation import ALIASES, CARELESS, KEY_FAULTS, PERFECT, STORE, KeyFaults, KeyFleet


def played(seed: int, keys: KeyFaults, faults: Faults = NONE) -> KeyFleet:
    fleet = KeyFleet(seed, keys, faults)
    fleet.run()
    return fleet


def test_a_store_whose_keys_are_all_destroyed_is_proven_gone() -> None:
    for seed in range(25):
        fleet = played(seed, PERFECT)
        assert not fleet.readable
        assert fleet.verdict() is VerdictKind.PROVEN, seed


@pytest.mark.parametrize("name", ["all", *KEY_FAULTS])
def test_no_mistake_with_keys_makes_a_verdict_unsound(name: str) -> None:
    seen: Counter[tuple[bool, VerdictKind]] = Counter()
    for seed in range(80 if name == "all" else 20):
        fleet = played(seed, CARELESS if name == "all" else KEY_FAULTS[name])
        verdict = fleet.verdict()
        assert verdict is not VerdictKind.REFUTED
        assert verdict is not VerdictKind.PROVEN or not fleet.holds_old, seed
        seen[fleet.readable, verdict] += 1
    assert seen[True, VerdictKind.UNPROVABLE] > 0
    assert seen[False, VerdictKind.PROVEN] > 0


def test_lost_records_make_no_verdict_on_keys_unsound() -> None:
    for seed in range(25):
        fleet = played(seed, CARELESS, Faults(lost=0.02, reattach=0.03, crash=0.02, resync=0.5))
        assert fleet.verdict() is not VerdictKind.PROVEN or not fleet.holds_old, seed


def _every_ring(fold: ControlFold) -> None:
    fold.stores.key_ends = {
        (key, ring): 1 << 60 for key, rings in fold.stores.rings.items() for ring in rings
    }


def _lists_of_later(fold: ControlFold) -> None:
    for rings in fold.stores.rings.values():
        rings.pop("late", None)


def _what_is_taken_back(fold: ControlFold) -> None:
    fold.stores.key_ends = dict.fromkeys(fold.stores.key_ends, 1 << 60)


def _what_lies_unencrypted(fold: ControlFold) -> None:
    for declared in fold.stores.encrypted.values():
        declared[:] = [one for one in declared if one[1] is not None]


def _keys_of_before(fold: ControlFold) -> None:
    for declared in fold.stores.encrypted.values():
        declared[:] = [(declared[0][0], declared[-1][1])]


def _what_is_undeclared(fold: ControlFold) -> None:
    known = next(iter(fold.stores.encrypted.values()), [])
    for alias in ALIASES.values():
        fold.stores.encrypted.setdefault((STORE, alias), known)


BLIND: dict[str, Callable[[ControlFold], None]] = {
    "kept": _every_ring,
    "late": _lists_of_later,
    "restored": _what_is_taken_back,
    "plain": _what_lies_unencrypted,
    "rotated": _keys_of_before,
    "undeclared": _what_is_undeclared,
    "writes_on": lambda fold: None,
}
assert set(BLIND) == set(KEY_FAULTS)


@pytest.mark.parametrize("fault", KEY_FAULTS)
def test_an_auditor_who_is_blind_to_one_part_of_the_rule_proves_something_false(fault: str) -> None:
    """And who isn't proves the same fleet not."""
    for seed in range(200):
        fleet = played(seed, KEY_FAULTS[fault])
        if not fleet.readable:
            continue
        assert fleet.verdict() is VerdictKind.UNPROVABLE
        assert fleet.evidence is not None
        BLIND[fault](fleet.registry)
        if fault == "writes_on":
            fleet.evidence.told_into.clear()
        if fleet.verdict() is VerdictKind.PROVEN:
            return
    pytest.fail(f"nobody notices that {fault} is looked at")


def test_without_p6_a_store_whose_keys_are_there_is_proven_gone() -> None:
    for seed in range(50):
        fleet = KeyFleet(seed, KEY_FAULTS["kept"], NONE, "P6")
        fleet.run()
        if fleet.readable and fleet.verdict() is VerdictKind.PROVEN:
            return
    pytest.fail("leaving P6 out was never caught")
