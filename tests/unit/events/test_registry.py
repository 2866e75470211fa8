"""Who may say what in kv.control, and the running hash over everything that is there."""

from __future__ import annotations

import hashlib

import pytest

from events.chain import CONTROL_HASH_START, advance_control_hash_by_parts, sha256, split_lines
from events.fold.registry import Registry
from events.ids import Role, StreamKey, Tier, Unit
from events.model.control import (
    DeletionRequested,
    DomainAdmitted,
    DomainCreated,
    DomainScope,
    Fenced,
    Granted,
    HoldReleased,
    HoldSet,
    LimitSet,
    Registered,
    Revoked,
    TenantScope,
)
from events.signing import Signer, verify
from tests.support.log import ControlLog


def folded(log: ControlLog) -> Registry:
    registry = Registry(verify)
    for offset, (value, signature) in enumerate(log.records):
        registry.fold(offset, value, signature)
    return registry


def reasons(log: ControlLog) -> dict[str, int]:
    return dict(folded(log).ignored)


def test_genesis_and_grants_are_obeyed() -> None:
    registry = folded(ControlLog())
    assert (registry.log, registry.partitions, len(registry.grants)) == ("log-test", 4, 5)
    assert not registry.ignored


def test_a_registration_supersedes_the_older_epoch_of_the_same_rank() -> None:
    log = ControlLog()
    first = log.register(epoch="e1")
    second = log.register(epoch="e2", life="life-2")
    other = log.register(rank=1, epoch="e1")
    registry = folded(log)
    assert registry.superseded(StreamKey("w0", 0, "e1"))
    assert not registry.superseded(StreamKey("w0", 0, "e2"))
    assert not registry.superseded(StreamKey("w0", 1, "e1"))
    numbers = [r.epoch_no for r in registry.registrations.values()]
    assert numbers == [first, second, other]


def test_registering_one_epoch_twice_with_other_bytes_fences_it() -> None:
    log = ControlLog()
    log.register(epoch="e1")
    log.register(epoch="e1")
    log.register(epoch="e1", life="other")
    registry = folded(log)
    assert dict(registry.ignored) == {"repeated_registration": 1, "conflicting_registration": 1}
    assert registry.fenced == {StreamKey("w0", 0, "e1"): "conflict"}


def test_an_order_that_is_written_again_counts_where_its_signer_put_it_and_nowhere_else() -> None:
    """Anybody who can write to the topic can copy a record with its signature."""
    log, key = ControlLog(), Signer.from_seed(bytes(32))
    grant = log.append(
        Granted(public_key=key.public_key, roles=(Role.CONTROL,), label="stolen later"), Role.OPERATOR
    )
    log.append(Revoked(public_key=key.public_key), Role.OPERATOR)
    log.records.append(log.records[grant])
    log.append(DomainCreated(domain="x", tenant="x"), Role.CONTROL, signer=key)
    hold = HoldSet(hold="case-1", tenant="acme", reason="court")
    log.append(hold, Role.CONTROL)
    released = log.append(HoldReleased(hold="case-1"), Role.CONTROL)
    log.append(hold, Role.CONTROL)
    log.records.append(log.records[released])
    registry = folded(log)
    assert (list(registry.domains), list(registry.holds)) == ([], ["case-1"])
    assert dict(registry.ignored) == {"repeated_record": 2, "revoked_signer": 1}


def test_a_hook_cannot_fence_or_grant_itself_anything() -> None:
    log = ControlLog()
    log.register()
    enrolment = log.signers[Role.ENROLMENT]
    fence = Fenced(worker="w0", rank=0, epoch="e1", evidence="operator")
    log.append(fence, Role.CONTROL, signer=enrolment)
    log.append(fence, Role.ENROLMENT, signer=enrolment)
    log.append(
        Granted(public_key=enrolment.public_key, roles=(Role.CONTROL,), label="me"),
        Role.OPERATOR,
        signer=enrolment,
    )
    registry = folded(log)
    assert dict(registry.ignored) == {"role_not_granted": 2, "wrong_role": 1}
    assert not registry.fenced


def test_strangers_bad_signatures_and_garbage_are_ignored_but_hashed() -> None:
    log = ControlLog()
    stranger = Signer.from_seed(bytes(32))
    log.append(DomainCreated(domain="x", tenant="x"), Role.CONTROL, signer=stranger)
    offset = log.append(DomainCreated(domain="y", tenant="y"), Role.CONTROL)
    log.records[offset] = (log.records[offset][0], bytes(64))
    log.records.append((b"\x00garbage", None))
    offset = log.append(DomainCreated(domain="z", tenant="z"), Role.CONTROL)
    log.records[offset] = (log.records[offset][0], None)
    registry = folded(log)
    assert not registry.domains
    assert dict(registry.ignored) == {"unknown_signer": 1, "bad_signature": 1, "not_json": 1, "unsigned": 1}
    assert registry.next_offset == len(log.records)


def test_the_running_hash_follows_from_header_hashes_alone() -> None:
    log = ControlLog()
    log.records.append((b"no newline at all", b"sig"))
    running = CONTROL_HASH_START
    for value, signature in log.records:
        head, rest = split_lines(value)
        running = advance_control_hash_by_parts(running, sha256(head), sha256(rest), sha256(signature or b""))
    assert folded(log).hash == running
    assert hashlib.sha256(b"kvledger control log v1").digest() == CONTROL_HASH_START


def test_a_jump_in_offsets_stops_the_reader() -> None:
    registry = Registry(verify)
    with pytest.raises(ValueError, match="jumps"):
        registry.fold(1, b"x", None)


def test_deletions_are_numbered_by_offset_and_deduplicated_by_scoped_key() -> None:
    log = ControlLog()
    log.append(DomainCreated(domain="acme", tenant="acme"), Role.CONTROL)
    body = DeletionRequested(scope=TenantScope(tenant="acme"), requester="ops")
    first = log.append(body, Role.CONTROL, idempotency_key="k", key_scope="p1")
    log.append(body, Role.CONTROL, idempotency_key="k", key_scope="p1")
    third = log.append(body, Role.CONTROL, idempotency_key="k", key_scope="p2")
    registry = folded(log)
    assert list(registry.deletions) == [first, third]
    assert registry.idempotency["p1", "k"] == first
    assert [d.number for d in registry.deletions_of("acme")] == [first, third]
    assert registry.deletions_of("other") == []


def test_domains_are_made_once_and_admit_others() -> None:
    log = ControlLog()
    log.append(DomainCreated(domain="acme", tenant="acme", shared=True), Role.CONTROL)
    log.append(DomainCreated(domain="acme", tenant="thief"), Role.CONTROL)
    log.append(DomainAdmitted(domain="acme", tenant="guest"), Role.CONTROL)
    log.append(DomainAdmitted(domain="nowhere", tenant="guest"), Role.CONTROL)
    registry = folded(log)
    assert registry.owner("acme") == "acme"
    assert registry.domains["acme"].readable_by("guest")
    assert not registry.domains["acme"].readable_by("thief")
    assert dict(registry.ignored) == {"domain_exists": 1, "unknown_domain": 1}


def test_a_revoked_key_no_longer_counts_but_what_it_signed_stands() -> None:
    log = ControlLog()
    log.append(DomainCreated(domain="a", tenant="a"), Role.CONTROL)
    log.append(Revoked(public_key=log.signers[Role.CONTROL].public_key), Role.OPERATOR)
    log.append(DomainCreated(domain="b", tenant="b"), Role.CONTROL)
    log.append(Revoked(public_key=log.signers[Role.OPERATOR].public_key), Role.OPERATOR)
    registry = folded(log)
    assert list(registry.domains) == ["a"]
    assert dict(registry.ignored) == {"revoked_signer": 1, "not_revocable": 1}


def test_limits_and_holds_follow_the_newest_record() -> None:
    log = ControlLog()
    for hard in (10, 20):
        log.append(LimitSet(tenant="a", tier=Tier.GPU, unit=Unit.BLOCKS, soft=5, hard=hard), Role.CONTROL)
    log.append(HoldSet(hold="h1", domain="a", reason="case 7"), Role.CONTROL)
    registry = folded(log)
    assert registry.limits["a", Tier.GPU, Unit.BLOCKS].hard == 20
    assert registry.held("a")
    log.append(HoldReleased(hold="h1"), Role.CONTROL)
    assert not folded(log).held("a")


def test_a_tenants_hold_stands_on_all_its_domains_later_ones_too() -> None:
    log = ControlLog()
    log.append(DomainCreated(domain="a", tenant="t"), Role.CONTROL)
    log.append(HoldSet(hold="h1", tenant="t", reason="case 7"), Role.CONTROL)
    log.append(HoldSet(hold="h2", domain="a", reason="case 8"), Role.CONTROL)
    log.append(DomainCreated(domain="t/late", tenant="t"), Role.CONTROL)
    log.append(DomainCreated(domain="b", tenant="other"), Role.CONTROL)
    registry = folded(log)
    assert [hold.body.hold for hold in registry.holds_on("a")] == ["h1", "h2"]
    assert (registry.held("t/late"), registry.held("b"), registry.held("nowhere")) == (True, False, False)
    log.append(HoldReleased(hold="h1"), Role.CONTROL)
    registry = folded(log)
    assert (registry.held("a"), registry.held("t/late")) == (True, False)


def test_a_record_of_another_log_or_before_genesis_is_ignored() -> None:
    log = ControlLog()
    foreign = ControlLog(log="other")
    foreign.append(DomainCreated(domain="a", tenant="a"), Role.CONTROL)
    log.records.append(foreign.records[-1])
    assert reasons(log) == {"foreign_log": 1}
    late = ControlLog()
    late.records = late.records[1:]
    registry = Registry(verify)
    registry.fold(0, *late.records[0])
    assert dict(registry.ignored) == {"no_genesis": 1}


def test_a_registration_must_name_a_partition_of_the_log() -> None:
    log = ControlLog()
    body = Registered(
        worker="w", rank=0, epoch="e", engine_life="l", public_key=bytes(32), partition=4, endpoint=None
    )
    log.append(body, Role.ENROLMENT)
    assert reasons(log) == {"unknown_partition": 1}


def test_domain_scope_covers_its_domain_alone() -> None:
    log = ControlLog()
    log.append(DomainCreated(domain="acme", tenant="acme"), Role.CONTROL)
    log.append(DomainCreated(domain="acme/alice", tenant="acme"), Role.CONTROL)
    number = log.append(
        DeletionRequested(scope=DomainScope(domain="acme/alice"), requester="ops"), Role.CONTROL
    )
    registry = folded(log)
    assert [d.number for d in registry.deletions_of("acme/alice")] == [number]
    assert registry.deletions_of("acme") == []
