"""Whoever holds a key of one role can do nothing of another's, on the real control log and in both folds of it, and
kvledger's own writer writes nothing of it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from auditor.log import PartitionReader
from auditor.registry import ControlFold
from events.codec import encode_control
from events.errors import GrantError
from events.fold.registry import Registry
from events.ids import Role, Tier, Unit
from events.kafka.connection import KafkaConnection, RawRecord, make_producer
from events.kafka.control import AskedFold, ControlTail, ControlWriter
from events.kafka.topic_admin import TopicAdmin
from events.model.control import (
    BOUND_ROLES,
    ROLE_OF_KIND,
    AuditNonce,
    ControlBody,
    ControllerStarted,
    DeletionRequested,
    DomainAdmitted,
    DomainCreated,
    ExitAttested,
    Fenced,
    Genesis,
    Granted,
    HolderDestroyed,
    HolderEncrypted,
    HolderEnrolled,
    HoldReleased,
    HoldSet,
    InvalidationRequested,
    InventoryMember,
    InventoryStated,
    KeyDestroyed,
    KeyListed,
    LimitSet,
    PolicySet,
    Registered,
    Revoked,
    RingNamed,
    SaltBound,
    SchemaEnabled,
    TenantScope,
)
from events.signing import Signer, verify
from events.topic import CONTROL, SIGNATURE_HEADER, TopicNames
from tests.integration.events.test_control_log import SIGNERS
from tests.support.heedless import Heedless

KEY = SIGNERS[Role.ENROLMENT].public_key
ACME = TenantScope(tenant="acme")
RETIRED, NODE, STRANGER = (Signer.from_seed(bytes([number]) * 32) for number in range(3))


def registered(worker: str) -> Registered:
    return Registered(worker=worker, rank=0, epoch="e1", engine_life="life", public_key=KEY, partition=0)


ATTEMPTS: tuple[ControlBody, ...] = (
    Genesis(log="log-1", operator_key=KEY, partitions=2),
    Granted(public_key=KEY, roles=tuple(Role), label="myself"),
    Revoked(public_key=SIGNERS[Role.AUDITOR].public_key),
    registered("gpu-9"),
    Fenced(worker="gpu-0", rank=0, epoch="e1", evidence="operator"),
    ExitAttested(worker="gpu-0", engine_life="life", attester="me", evidence="trust me"),
    DomainCreated(domain="mine", tenant="me"),
    DomainAdmitted(domain="acme-chat", tenant="me"),
    SaltBound(domain="acme-chat", salt_hmac=bytes(32)),
    HolderEnrolled(durable_id="store-1", tier=Tier.DISK, owner="gpu-9"),
    HolderDestroyed(durable_id="store-1", evidence="trust me"),
    HolderEncrypted(durable_id="store-1", key=bytes(16)),
    KeyListed(key=bytes(16), rings=(RingNamed(ring="hsm"),)),
    KeyDestroyed(key=bytes(16), ring="hsm", evidence="trust me"),
    LimitSet(tenant="acme", tier=Tier.GPU, unit=Unit.BLOCKS, hard=0),
    PolicySet(domain="acme-chat", retain_s=60),
    HoldSet(hold="h1", domain="acme-chat", reason="none"),
    HoldReleased(hold="h0"),
    DeletionRequested(scope=ACME, requester="gpu-9"),
    InvalidationRequested(scope=ACME, requester="gpu-9", reason="integrity"),
    AuditNonce(request=9, nonce="n"),
    InventoryStated(source="me", members=(InventoryMember(worker="gpu-9"),)),
    SchemaEnabled(record="pulse", version=9),
    ControllerStarted(controller="me"),
)
BEHIND = ATTEMPTS[1:]


async def test_a_key_can_do_nothing_of_another_role(kafka: str, topic_prefix: str) -> None:
    assert {body.kind for body in ATTEMPTS} == ROLE_OF_KIND.keys()
    log = KafkaConnection(kafka, TopicNames(topic_prefix))
    await TopicAdmin(log, partitions=2).ensure()
    out = ControlWriter(log, Heedless("log-1"), signers=SIGNERS, wall_ms=lambda: 7)
    producer = make_producer(log)
    reader = ControlTail(log, Registry(verify), monotonic_ns=time.monotonic_ns)
    own, auditors = reader.registry, ControlFold(verify)

    def feed(record: RawRecord, *_: object) -> None:
        auditors.feed(record.offset, record.value, record.signature)

    reader.listen(feed)
    audited = PartitionReader(log, log.topic(CONTROL), 20.0)
    await out.start()
    await producer.start()
    try:
        await out.append(Genesis(log="log-1", operator_key=SIGNERS[Role.OPERATOR].public_key, partitions=2))
        for role in Role:
            if role is not Role.OPERATOR:
                await out.append(
                    Granted(public_key=SIGNERS[role].public_key, roles=(role,), label=role.value)
                )
        for body in (
            registered("gpu-0"),
            DomainCreated(domain="acme-chat", tenant="acme"),
            HoldSet(hold="h0", domain="acme-chat", reason="court"),
            DeletionRequested(scope=ACME, requester="dpo"),
            Granted(public_key=RETIRED.public_key, roles=tuple(Role), label="of before"),
            Granted(public_key=NODE.public_key, roles=tuple(BOUND_ROLES), label="node", workers=("else",)),
        ):
            await out.append(body)
        await reader.catch_up()
        for attempt in BEHIND:
            assert {own.why_not(RETIRED.id, role, attempt) for role in ROLE_OF_KIND[attempt.kind]} == {""}
        await out.append(Revoked(public_key=RETIRED.public_key))
        await reader.catch_up()
        before, end = told(own), own.next_offset
        for fold in (own, auditors):
            for role in Role:
                others = [body for body in BEHIND if role not in ROLE_OF_KIND[body.kind]]
                assert await refused(log, fold, SIGNERS[role], others) == {"role_not_granted"}
            assert await refused(log, fold, RETIRED, BEHIND) == {"revoked_signer"}
            assert await refused(log, fold, STRANGER, BEHIND) == {"unknown_signer"}
            assert await refused(log, fold, NODE, BEHIND) == {"role_not_granted", "outside_grant"}
        assert await refused(log, own, SIGNERS[Role.OPERATOR], ATTEMPTS[:1]) == {"second_genesis"}
        await reader.catch_up()
        assert own.next_offset == end
        sent = 0
        for attempt in ATTEMPTS:
            allowed = ROLE_OF_KIND[attempt.kind]
            for role in set(Role) - allowed:
                # Under its own role, and as if it had been granted the one that is needed.
                for claimed in (role, *allowed):
                    await forge(producer, log, attempt, SIGNERS[role], claimed)
                    sent += 1
        await forge(producer, log, ATTEMPTS[4], STRANGER, Role.CONTROL)
        await producer.flush()
        await reader.catch_up()
        assert told(reader.registry) == before
        assert sum(reader.registry.ignored.values()) == sent + 1
        assert reader.registry.ignored.keys() <= {
            "wrong_role",
            "role_not_granted",
            "unknown_signer",
            "second_genesis",
        }
        fold = ControlFold(verify)

        def take(record: RawRecord) -> None:
            fold.feed(record.offset, record.value, record.signature)

        await audited.start(1)
        await audited.read_to(await audited.ends(), take)
        assert len(fold.ignored) == sent + 1
        assert (fold.fences, fold.exits, len(fold.requests), fold.stores.owners) == ({}, {}, 1, {})
        assert fold.hash == reader.registry.hash
    finally:
        await out.stop()
        await producer.stop()
        await reader.stop()
        await audited.stop()


async def refused(
    log: KafkaConnection, fold: AskedFold, signer: Signer, bodies: Sequence[ControlBody]
) -> set[str]:
    """Why a writer doesn't write each of these under a key, whatever role it claims."""
    writer, reasons = ControlWriter(log, fold, signers=dict.fromkeys(Role, signer), wall_ms=lambda: 7), set()
    await writer.start()
    for body in bodies:
        with pytest.raises(GrantError, match="nothing was written") as caught:
            await writer.append(body)
        reasons.add(caught.value.reason)
    await writer.stop()
    return reasons


async def forge(
    producer: object, log: KafkaConnection, body: ControlBody, signer: Signer, claimed: Role
) -> None:
    """A record with a good signature of a key that hasn't the role."""
    value, line = encode_control(body, log="log-1", signer=signer.id, role=claimed, written_ms=1)
    await producer.send(  # type: ignore[attr-defined]
        log.topic(CONTROL), value, headers=[(SIGNATURE_HEADER, signer.sign(line))], partition=0
    )


def told(registry: Registry) -> tuple[object, ...]:
    """All that a record can change, but the count of those that were ignored."""
    return (
        registry.log,
        registry.partitions,
        {key: (grant.roles, grant.revoked_at) for key, grant in registry.grants.items()},
        dict(registry.registrations),
        dict(registry.fenced),
        dict(registry.exits),
        {name: (domain.tenant, frozenset(domain.admitted)) for name, domain in registry.domains.items()},
        dict(registry.bound_salts),
        dict(registry.durable_owners),
        set(registry.destroyed),
        dict(registry.limits),
        dict(registry.policies),
        dict(registry.holds),
        dict(registry.deletions),
        dict(registry.nonces),
        dict(registry.schema),
        registry.controller_term,
    )
