"""A grant that is bound to workers and stores: what its key says of others, no fold and no verifier takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from auditor.registry import ControlFold
from events.codec import dump
from events.fold.registry import Registry
from events.fold.registry_state import named
from events.ids import KeyId, Role, StreamKey, Tier
from events.model.control import (
    BOUND_ROLES,
    ROLE_OF_KIND,
    ControlBody,
    DomainCreated,
    ExitAttested,
    Genesis,
    Granted,
    HolderDestroyed,
    HolderEncrypted,
    HolderEnrolled,
    InventoryMember,
    InventoryStated,
    Registered,
    Revoked,
)
from events.signing import Signer, verify
from tests.support.bundle import SECOND
from tests.support.log import ControlLog

NODE = Signer.from_seed(bytes(31) + b"n")
LIFE = "life-1"


def registered(worker: str, epoch: str = "mine") -> Registered:
    return Registered(
        worker=worker, rank=0, epoch=epoch, engine_life=LIFE, public_key=NODE.public_key, partition=0
    )


def ended(worker: str) -> ExitAttested:
    return ExitAttested(worker=worker, engine_life=LIFE, attester="node", evidence="exit 0")


def enrolled(store: str, owner: str) -> HolderEnrolled:
    return HolderEnrolled(durable_id=store, tier=Tier.DISK, owner=owner)


def bound(**more: object) -> Granted:
    fields = {"roles": tuple(sorted(BOUND_ROLES)), "workers": ("gpu-1", "node7-*"), "stores": ("disk-1",)}
    return Granted(public_key=NODE.public_key, label="node 7", **(fields | more))  # type: ignore[arg-type]


class All:
    """One log under both registries and the second verifier; `why` is what they say, and they agree."""

    def __init__(self, grant: Granted | None = None) -> None:
        self.log = ControlLog()
        self.index, self.audit, self.second = Registry(verify), ControlFold(verify), SECOND.Control()
        self.follow()
        self.say(grant or bound(), Role.OPERATOR)

    def follow(self) -> str:
        why = ""
        for offset in range(self.index.next_offset, len(self.log.records)):
            value, signature = self.log.records[offset]
            _, why = self.index.fold(offset, value, signature)
            assert self.audit.feed(offset, value, signature) == why
            self.second._read(offset, value, signature)
            broken = [one.offset for one in self.audit.ignored if one.broken]
            unread = [one.offset for one in self.audit.ignored if one.unread]
            assert (self.second.broken, self.second.unread) == (broken, unread)
            assert self.second.exits == self.audit.exits
            assert self.second.owners == self.audit.stores.owners
            assert self.second.destroyed == self.audit.stores.destroyed
            assert sorted(self.second.epochs) == [tuple_of(stream) for stream in sorted(self.audit.epochs)]
            assert set(self.index.registrations) == set(self.audit.epochs)
        return why

    def say(self, body: ControlBody, role: Role, **more: object) -> str:
        self.log.append(body, role, **more)  # type: ignore[arg-type]
        return self.follow()

    def node_says(self, body: ControlBody, role: Role | None = None, **more: object) -> str:
        role = role or next(iter(ROLE_OF_KIND[body.kind]))
        asked = self.index.why_not(NODE.id, role, body)
        why = self.say(body, role, signer=NODE, **more)
        assert asked in (why, ""), "asking before writing gives what writing gives"
        return why


def tuple_of(stream: StreamKey) -> tuple[str, int, str]:
    return stream.worker, stream.rank, stream.epoch


def test_a_bound_key_registers_its_own_workers_and_no_others() -> None:
    log = All()
    assert [log.node_says(registered(name)) for name in ("gpu-1", "node7-a")] == ["", ""]
    log.say(registered("gpu-2", "theirs"), Role.ENROLMENT)
    assert [log.node_says(registered(name)) for name in ("gpu-2", "gpu-10", "node7", "GPU-1")] == [
        "outside_grant"
    ] * 4
    assert log.index.current["gpu-2", 0] == StreamKey("gpu-2", 0, "theirs")
    assert log.audit.newest("gpu-2", 0).body.epoch == "theirs"
    assert log.index.ignored["outside_grant"] == 4
    assert [one.broken for one in log.audit.ignored] == [True] * 4


def test_a_bound_key_cannot_fence_another_stream_by_registering_it_again() -> None:
    log = All()
    log.say(registered("gpu-2", "theirs"), Role.ENROLMENT)
    again = registered("gpu-2", "theirs").model_copy(update={"engine_life": "other"})
    assert log.node_says(again) == "outside_grant"
    assert (log.index.fenced, log.audit.fences, log.second.fences) == ({}, {}, {})


def test_exits_stores_and_inventories_are_bound_as_registrations_are() -> None:
    log = All()
    assert log.node_says(ended("gpu-1")) == ""
    assert log.node_says(ended("gpu-2")) == "outside_grant"
    assert log.node_says(enrolled("disk-1", "node7-b")) == ""
    assert log.node_says(enrolled("disk-2", "gpu-1")) == "outside_grant"
    assert log.node_says(enrolled("disk-1", "gpu-2")) == "outside_grant"
    assert log.node_says(HolderDestroyed(durable_id="disk-2", evidence="gone")) == "outside_grant"
    assert log.node_says(HolderDestroyed(durable_id="disk-1", evidence="gone")) == ""
    assert log.node_says(HolderEncrypted(durable_id="disk-2")) == "outside_grant"
    assert log.node_says(HolderEncrypted(durable_id="disk-1")) == ""
    inventory = InventoryStated(source="node", members=(InventoryMember(worker="gpu-1"),))
    assert log.node_says(inventory) == "outside_grant"
    assert not log.audit.inventories
    assert not log.second.inventories


def test_what_a_binding_leaves_out_is_none() -> None:
    workers, stores = All(bound(stores=None)), All(bound(workers=None))
    assert workers.node_says(registered("gpu-1")) == ""
    assert workers.node_says(enrolled("disk-1", "gpu-1")) == "outside_grant"
    assert stores.node_says(registered("gpu-1")) == "outside_grant"
    assert stores.node_says(HolderDestroyed(durable_id="disk-1", evidence="gone")) == ""


def test_a_bound_key_uses_up_nobodys_idempotency_key_but_its_own() -> None:
    log = All()
    taken: dict[str, Any] = {"idempotency_key": "k", "key_scope": "attest-kubernetes"}
    assert log.node_says(registered("gpu-1"), **taken) == ""
    assert log.say(ended("gpu-2"), Role.SUPERVISOR, **taken) == ""
    assert log.node_says(registered("node7-a"), idempotency_key="k") == "repeated_idempotency_key"
    assert StreamKey("node7-a", 0, "mine") not in log.audit.epochs
    # A key that isn't bound may speak for a principal, as ever.
    assert log.say(ended("gpu-3"), Role.SUPERVISOR, **taken) == "repeated_idempotency_key"
    assert log.audit.exits.keys() == {("gpu-2", LIFE)}


def test_another_grant_takes_the_place_of_a_binding_and_what_was_registered_stands() -> None:
    log = All()
    assert log.node_says(registered("gpu-1")) == ""
    log.say(bound(workers=("gpu-2",)), Role.OPERATOR)
    assert log.node_says(registered("gpu-1", "next")) == "outside_grant"
    assert log.node_says(registered("gpu-2")) == ""
    assert log.index.current["gpu-1", 0].epoch == "mine"
    log.say(bound(workers=None, stores=None), Role.OPERATOR)
    assert log.node_says(registered("gpu-3")) == ""
    log.say(Revoked(public_key=NODE.public_key), Role.OPERATOR)
    assert log.node_says(registered("gpu-4")) == "revoked_signer"


@pytest.mark.parametrize("role", sorted(set(Role) - BOUND_ROLES))
def test_a_role_whose_word_names_no_worker_cannot_be_bound(role: Role) -> None:
    with pytest.raises(ValidationError, match="only the roles enrolment and supervisor"):
        bound(roles=(role,))
    free = bound(roles=(role,), workers=None, stores=None)
    line = dump(free).replace(b'"label"', b'"workers":["gpu-1"],"label"')
    with pytest.raises(ValidationError):
        Granted.model_validate_json(line)
    with pytest.raises(ValueError, match="wrong form"):
        SECOND.CONTROL_BODY(json.loads(line))


@pytest.mark.parametrize("pattern", ["*", "", "gpu-*-1", "gpu**", "gpu 1", "gpu-1\n", "g" * 201])
def test_a_pattern_is_a_name_or_the_beginning_of_one(pattern: str) -> None:
    with pytest.raises(ValidationError):
        bound(workers=(pattern,))
    line = json.loads(dump(bound())) | {"workers": [pattern]}
    with pytest.raises(ValueError, match="wrong form"):
        SECOND.CONTROL_BODY(line)


def test_an_empty_binding_is_none_and_not_everybody() -> None:
    with pytest.raises(ValidationError):
        bound(workers=())
    with pytest.raises(ValueError, match="wrong form"):
        SECOND.CONTROL_BODY(json.loads(dump(bound())) | {"workers": []})


def test_a_grant_without_a_binding_has_the_bytes_that_it_always_had() -> None:
    old = b'{"kind":"granted","public_key":"%s","roles":["enrolment"],"label":"e"}' % (b"00" * 32)
    assert dump(Granted(public_key=bytes(32), roles=(Role.ENROLMENT,), label="e")) == old
    read = Granted.model_validate_json(old)
    assert (read.workers, read.stores) == (None, None)
    assert SECOND.CONTROL_BODY(json.loads(old))["workers"] is None


def test_an_unbound_key_may_say_everything_of_its_role() -> None:
    log = All(bound(workers=None, stores=None))
    for body in (registered("any"), ended("any"), enrolled("s", "any")):
        assert log.node_says(body) == ""
    assert log.node_says(DomainCreated(domain="d", tenant="t")) == "role_not_granted"


def test_asking_for_a_key_that_nobody_granted() -> None:
    assert All().index.why_not(KeyId("0" * 16), Role.ENROLMENT, registered("gpu-1")) == "unknown_signer"


def test_only_its_operator_begins_a_log_and_only_once() -> None:
    empty, begun = Registry(verify), All().index
    genesis = Genesis(log="log-1", operator_key=NODE.public_key, partitions=2)
    assert empty.why_not(NODE.id, Role.OPERATOR, genesis) == ""
    assert empty.why_not(KeyId("0" * 16), Role.OPERATOR, genesis) == "genesis_malformed"
    assert empty.why_not(NODE.id, Role.ENROLMENT, registered("gpu-1")) == "no_genesis"
    assert begun.why_not(NODE.id, Role.OPERATOR, genesis) == "second_genesis"


@pytest.mark.parametrize(
    ("patterns", "name", "is_named"),
    [
        (("gpu-1",), "gpu-1", True),
        (("gpu-1",), "gpu-10", False),
        (("gpu-1*",), "gpu-10", True),
        (("gpu-*",), "gpu-", True),
        (("gpu-*",), "xgpu-1", False),
        (("a.b",), "axb", False),
        (("a.*",), "axb", False),
        ((), "gpu-1", False),
    ],
)
def test_patterns_mean_the_same_everywhere(patterns: tuple[str, ...], name: str, is_named: bool) -> None:
    assert named(patterns, name) == is_named
    assert any(SECOND.matches(one, name) for one in patterns) == is_named
    if patterns:
        assert (All(bound(workers=patterns)).node_says(registered(name)) == "") == is_named
