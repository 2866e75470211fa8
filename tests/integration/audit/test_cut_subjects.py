"""kv.subjects on a real broker whose records were dropped: nobody knows what was bound there but the archive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from auditor.finding import Verdict
from auditor.registry import ControlFold
from auditor.verify import verify_bundle
from events.ids import Role
from events.kafka.connection import KafkaConnection
from events.kafka.subject import SubjectLog
from events.kafka.topic_admin import drop_records
from events.keyring import DomainKeys
from events.model.audit import Segment, SubjectBound
from events.model.control import SubjectScope
from events.signing import verify
from events.topic import SUBJECTS, TopicNames
from kvledger.archiving import archive_log
from kvledger.checkpointing import make_checkpoint, sealing
from kvledger.command.audit import audit_requests
from kvledger.command.audit_offline import audit_offline
from kvledger.control import read_registry
from kvledger.settings import Settings
from tests.integration.audit.test_archive import check
from tests.integration.audit.test_command import Published, published
from tests.support.audit_log import RING
from tests.support.bundle import second_says
from tests.support.command import kvledger

__all__ = ["published"]
KEYS: DomainKeys = RING["acme"]


class Gateway:
    """Binds leaves to subjects on the real topic, and takes their deletions as a replica does."""

    def __init__(self, published: Published) -> None:
        self.published = published
        self.settings = Settings(home=published.home, kafka=published.kafka, topic_prefix=published.prefix)
        self.connection = KafkaConnection(published.kafka, TopicNames(published.prefix))
        self._subjects = SubjectLog(self.connection)

    async def bind(self, subject: str, *leaves: bytes) -> int:
        body = SubjectBound(subject=KEYS.pseudonym(subject), domain="acme", leaves=tuple(sorted(leaves)))
        return await self._subjects.bind(body, self.published.log.control.signers[Role.CONTROL])

    def registry(self) -> ControlFold:
        registry = ControlFold(verify)
        for offset, (value, signature) in enumerate(self.published.log.control.records):
            registry.feed(offset, value, signature)
        return registry

    async def delete(self, subject: str) -> tuple[int, tuple[bytes, ...]]:
        """The request's number, and the leaves that it names."""
        registry = await read_registry(self.connection)
        scope = await self._subjects.scope(registry, {"acme": KEYS}, "acme", subject)
        assert isinstance(scope, SubjectScope)
        return self.published.log.delete(scope), scope.leaves or ()

    async def drop(self, below: int) -> None:
        await drop_records(self.connection, SUBJECTS, {0: below})

    async def archived(self, place: Path) -> None:
        """Sealed and archived as it stands."""
        assert (await make_checkpoint(self.settings)).problems == []
        state = await archive_log(self.settings, str(place), write=True, release=False, keep_days=0)
        assert state.problems == []

    async def judged(self, request: int, place: Path | None = None) -> Verdict:
        """By an audit that reads what is gone from the archive, if there is one; its bundle says the same."""
        bundle = self.published.home.parent / "proof.jsonl"
        archive = None if place is None else str(place)
        (verdict,) = await audit_requests(self.settings, [request], wait_s=0, bundle=bundle, archive=archive)
        raw, operator = bundle.read_bytes(), self.published.log.control.signers[Role.OPERATOR].public_key
        assert verify_bundle(raw, operator).verdict == verdict
        assert second_says(raw, operator) == verdict.kind
        return verdict

    async def judged_alone(self, request: int, place: Path) -> Verdict:
        (verdict,) = await audit_offline(self.settings, str(place), [request])
        return verdict

    async def stop(self) -> None:
        await self._subjects.stop()


@pytest.fixture
async def gateway(published: Published) -> AsyncIterator[Gateway]:
    made = Gateway(published)
    yield made
    await made.stop()


def said(verdict: Verdict) -> tuple[str, set[str]]:
    return verdict.kind.value, {reason.reason.value for reason in verdict.reasons}


async def test_a_binding_that_retention_took_before_the_request_never_makes_it_proven(
    published: Published, gateway: Gateway, tmp_path: Path
) -> None:
    log, place = published.log, tmp_path / "archive"
    hook = log.hook("w0").open()
    lost, known = hook.store("acme", 1)[0], hook.store("acme", 2)[0]
    await gateway.bind("patient 17", lost)
    await gateway.bind("patient 17", known)
    await published.publish()
    await gateway.archived(place)  # nobody has asked for a subject yet
    await gateway.drop(1)

    request, leaves = await gateway.delete("patient 17")
    assert leaves == (known,)  # a scope that is too small: `lost` is the patient's too
    hook.remove("acme", [known], request)
    hook.ack(request, "acme")
    hook.ack(request, "acme", nonce=log.nonce(request))
    await published.publish()
    found = await gateway.judged(request)
    assert said(found) == ("UNPROVABLE", {"retention_truncated"})
    (reason,) = found.reasons
    assert (reason.condition, "--archive" in reason.cure) == ("P2", True)

    found = await gateway.judged(request, place)
    assert said(found) == ("UNPROVABLE", {"scope_undecidable"})  # as with the whole topic
    await gateway.archived(place)
    assert await gateway.judged_alone(request, place) == found

    env = {"KVLEDGER_KAFKA": published.kafka, "KVLEDGER_TOPIC_PREFIX": published.prefix}
    for command in (
        ("subject", "show", "acme", "patient 17"),
        ("delete", "--domain", "acme", "--subject", "patient 17"),
    ):
        done = kvledger(*command, home=published.home, env=env)
        assert (done.returncode, "kv.subjects begins at 1" in done.stderr) == (0, True), done.stderr


async def deleted(gateway: Gateway) -> int:
    """Two subjects are bound, the second one's deletion is carried out; the request."""
    log = gateway.published.log
    hook = log.hook("w0").open()
    leaf = hook.store("acme", 1, 2)[-1]
    await gateway.bind("patient 18", hook.store("acme", 7)[0])
    await gateway.bind("patient 17", leaf)
    await gateway.published.publish()
    request, leaves = await gateway.delete("patient 17")
    assert leaves == (leaf,)
    hook.remove("acme", [leaf], request)
    hook.ack(request, "acme")
    hook.ack(request, "acme", nonce=log.nonce(request))
    await gateway.published.publish()
    return request


async def test_what_kv_subjects_has_dropped_is_read_from_the_archive_and_the_verdict_is_the_same(
    published: Published, gateway: Gateway, tmp_path: Path
) -> None:
    place = tmp_path / "archive"
    request = await deleted(gateway)
    whole = await gateway.judged(request)
    assert said(whole) == ("PROVEN", set())
    await gateway.archived(place)

    await gateway.bind("patient 18", bytes(16))  # behind what was archived
    await gateway.drop(1)
    assert said(await gateway.judged(request)) == ("UNPROVABLE", {"retention_truncated"})
    assert await gateway.judged(request, place) == whole
    published.log.hooks[0].say_state()
    await published.publish()
    assert (await make_checkpoint(gateway.settings)).problems == []
    await gateway.drop(3)  # offset 2 was sealed, and never archived
    assert said(await gateway.judged(request, place)) == ("UNPROVABLE", {"retention_truncated"})
    assert await gateway.judged_alone(request, place) == whole  # as of the archive's end

    # From now on the archive holds what there was, and what there is, with a hole between them.
    state = await archive_log(gateway.settings, str(place), write=True, release=False, keep_days=0)
    assert (state.lost, state.problems) == (["kv.subjects/0 from 2 to 3"], [])
    published.log.hooks[0].say_state()
    await published.publish()
    await gateway.archived(place)
    assert said(await gateway.judged_alone(request, place)) == ("UNPROVABLE", {"topic_compacted"})
    check(place)


async def test_an_archived_binding_that_was_tampered_with_proves_nothing(
    gateway: Gateway, tmp_path: Path
) -> None:
    place = tmp_path / "archive"
    request = await deleted(gateway)
    await gateway.archived(place)
    await gateway.drop(2)
    assert (await gateway.judged(request, place)).kind == "PROVEN"
    (raw,) = place.glob("*/kv.subjects/0/*.raw")
    content = raw.read_bytes()
    for spoilt in (
        content.replace(KEYS.pseudonym("patient 17").hex().encode(), b"0" * 64),
        content[:24],
        None,
    ):
        raw.unlink(missing_ok=True)
        if spoilt is not None:
            raw.write_bytes(spoilt)
        found = await gateway.judged(request, place)
        assert said(found) == ("UNPROVABLE", {"checkpoint_unverified", "retention_truncated"})


async def test_kv_subjects_that_is_shorter_than_somebody_saw_it_proves_nothing(gateway: Gateway) -> None:
    request = await deleted(gateway)
    log = gateway.published.log
    body = log.scope_of(request)
    assert isinstance(body, SubjectScope)
    assert body.bound_to == 2
    hook = log.hooks[0]
    later = log.delete(
        body.model_copy(update={"bound_to": 3})
    )  # taken from a topic that held one record more
    hook.ack(later, "acme")
    hook.ack(later, "acme", nonce=log.nonce(later))
    await gateway.published.publish()
    assert said(await gateway.judged(later)) == ("UNPROVABLE", {"topic_compacted"})
    await gateway.bind("patient 18", bytes(16))
    assert said(await gateway.judged(later)) == ("PROVEN", set())

    others = Segment(topic=SUBJECTS.name, partition=0, first=0, next=3, records=3, root=bytes(32))
    async with sealing(gateway.settings, gateway.registry()) as sealer:
        await sealer.seal_subjects(others)
    assert said(await gateway.judged(later)) == ("UNPROVABLE", {"checkpoint_unverified"})


async def test_a_transactions_mark_in_kv_subjects_counts_as_a_record_that_is_gone(gateway: Gateway) -> None:
    request = await deleted(gateway)
    assert (await gateway.judged(request)).kind == "PROVEN"
    producer = AIOKafkaProducer(
        bootstrap_servers=gateway.connection.bootstrap, transactional_id=f"{gateway.published.prefix}subjects"
    )
    await producer.start()
    try:
        await producer.begin_transaction()
        await producer.send_and_wait(gateway.connection.topic(SUBJECTS), b"{}", partition=0)
        await producer.abort_transaction()
    finally:
        await producer.stop()
    assert said(await gateway.judged(request)) == ("UNPROVABLE", {"topic_compacted"})
