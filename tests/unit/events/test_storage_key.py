"""Keys of durable stores: their ids, a domain's name in a store, and what the registry obeys of them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from events.chain import alias, store_alias
from events.fold.registry import Registry
from events.ids import Role
from events.keyring import storage_key_id
from events.model.control import ControlBody, KeyListed, RingNamed
from events.signing import Signer, verify
from tests.support.audit_log import RING
from tests.support.encrypted_store import STORE, encrypted, gone, listed
from tests.support.log import ControlLog

HSM = Signer.from_seed(bytes(range(32)))
KEY = storage_key_id("k")


def folded(*told: tuple[ControlBody, Role]) -> tuple[Registry, list[str]]:
    log, registry = ControlLog(), Registry(verify)
    for body, role in told:
        log.append(body, role)
    why = [
        registry.fold(offset, value, signature)[1] for offset, (value, signature) in enumerate(log.records)
    ]
    return registry, why[len(why) - len(told) :]


def test_an_id_and_an_alias_are_what_every_reader_computes() -> None:
    assert storage_key_id("w0-disk-2031").hex() == "db48560f54098f15d01510bca7603689"
    assert store_alias(bytes(32), "w0-disk").hex() == "26f26864608960d00f86328d399b9594"
    assert store_alias(bytes(32), "w0") != alias(bytes(32), "w0", 0, 0)
    keys = RING["acme"]
    assert store_alias(keys.alias_key, STORE) != store_alias(keys.alias_key, "disk-2")


def test_a_key_is_left_where_its_newest_list_is_behind_its_destruction() -> None:
    lists, ends = (listed("k", "a", "b"), Role.CONTROL), (gone("k", "a"), Role.SUPERVISOR)
    assert folded(lists)[0].storage_keys[KEY].left == ["a", "b"]
    assert folded(lists, ends)[0].storage_keys[KEY].left == ["b"]
    assert folded(lists, ends, (listed("k", "a"), Role.OPERATOR))[0].storage_keys[KEY].left == ["a", "b"]


def test_what_is_not_obeyed_is_named() -> None:
    told: list[tuple[ControlBody, Role]] = [
        (gone("k", "a"), Role.SUPERVISOR),
        (listed("k", "a", attester=HSM.public_key), Role.CONTROL),
        (gone("k", "a"), Role.SUPERVISOR),
        (gone("k", "b"), Role.SUPERVISOR),
        (gone("k", "a"), Role.CONTROL),
        (listed("k", "c"), Role.SUPERVISOR),
        (encrypted("acme", "k"), Role.CONTROL),
        (encrypted("acme", "k"), Role.ENROLMENT),
    ]
    registry, why = folded(*told)
    assert why == [
        "unlisted_ring", "", "not_its_attester", "unlisted_ring", "wrong_role", "wrong_role", "wrong_role", "",
    ]  # fmt: skip
    assert registry.storage_keys[KEY].left == ["a"]
    assert list(registry.encrypted.values()) == [{KEY: registry.next_offset - 1}]


def test_a_ring_is_named_once_and_at_least_one_is() -> None:
    for rings in ((), (RingNamed(ring="a"), RingNamed(ring="a"))):
        with pytest.raises(ValidationError):
            KeyListed(key=KEY, rings=rings)
