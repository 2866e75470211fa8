"""Hooks with an agent on a real log: what readers fold is what the engine holds, whatever goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from events.chain import sha256
from events.codec import decode_batch
from events.fold.change import Outcome
from events.hooks.emitter import EmitterLimits
from events.hooks.engine_event import EngineHash
from events.hooks.engine_port import RemovalResult
from events.hooks.engine_stream import EngineStream
from events.hooks.hook import HookIdentity
from events.hooks.host import HookHost, HostPace, NoGenesisError
from events.ids import Basis, CopyState, Inventory, Role, StreamKey, StreamStatus
from events.kafka.connection import KafkaConnection, LogTruncatedError
from events.kafka.topic_admin import TopicAdmin
from events.keyring import load_keyring, with_domain
from events.model.control import DomainCreated, Fenced, HoldReleased, HoldSet, SchemaEnabled
from events.model.part import SnapshotEnd, Statement
from events.signing import verify
from events.topic import TopicNames
from tests.support.hook_log import DOMAINS, SIGNERS, HookLog, ring, until
from tests.support.stepped_engine import SteppedEngine


@pytest.fixture
async def log(kafka: str, topic_prefix: str) -> AsyncIterator[HookLog]:
    async with HookLog(kafka, topic_prefix) as entered:
        yield entered


@pytest.fixture
async def host(log: HookLog) -> AsyncIterator[HookHost]:
    pace = HostPace(pulse_s=0.1)
    async with HookHost(log.connection, log.keyring, SIGNERS[Role.ENROLMENT], pace=pace) as entered:
        yield entered
        assert entered.failed is None


async def applied(log: HookLog, engine: SteppedEngine) -> None:
    """Waits until readers have folded all that the hook has numbered."""
    hook = engine.hook
    await until(lambda: hook.stream is not None)
    await until(
        lambda: (state := log.current(engine.worker, engine.rank)) is not None and state.key == hook.stream
    )
    await until(lambda: log.state(_stream(engine)).next_seq >= hook.next_seq)


def _stream(engine: SteppedEngine) -> StreamKey:
    stream = engine.hook.stream
    assert stream is not None
    return stream


async def test_readers_fold_what_the_engine_holds(log: HookLog, host: HookHost) -> None:
    engine = SteppedEngine("w0", log.keyring, capacity_blocks=12)
    await engine.start(host)
    for first in range(0, 30, 3):
        engine.serve("acme", range(first, first + 5), outputs=2)
    await applied(log, engine)
    state = log.current("w0")
    assert state is not None
    assert state.status is StreamStatus.LIVE
    assert len(log.copies("w0")) == engine.truth() == 12
    assert set(log.outcomes) == {Outcome.APPLIED}
    assert state.holders["gpu"].inventory is Inventory.EMPTY


async def test_record_zero_names_its_registration_and_is_signed_by_the_registered_key(
    log: HookLog, host: HookHost
) -> None:
    engine = SteppedEngine("w0", log.keyring)
    await engine.start(host)
    await applied(log, engine)
    registration = log.registry.registrations[_stream(engine)]
    first = log.records[0]
    assert decode_batch(first.value).header.prev == registration.record_sha256
    assert decode_batch(first.value).header.epoch_no == registration.epoch_no
    assert first.partition == registration.body.partition
    line = first.value.partition(b"\n")[0]
    assert first.signature is not None
    assert verify(registration.body.public_key, first.signature, line)


async def test_a_beacon_is_echoed_once_the_engine_has_confirmed(log: HookLog, host: HookHost) -> None:
    engine = SteppedEngine("w0", log.keyring)
    await engine.start(host)
    await until(lambda: ("w0", 0) in log.pulses)
    beacon = await log.beacon()
    await until(lambda: log.echoed("w0", beacon))
    assert log.pulses["w0", 0].basis is Basis.ENGINE
    engine.dead = True
    late = await log.beacon()
    engine.serve("acme", [1, 2])
    await until(lambda: log.pulses["w0", 0].next_seq == engine.hook.next_seq)
    assert not log.echoed("w0", late)
    engine.dead = False
    await until(lambda: log.echoed("w0", late))


async def test_a_mutation_before_a_beacon_is_numbered_before_its_echo(log: HookLog, host: HookHost) -> None:
    engine = SteppedEngine("w0", log.keyring)
    await engine.start(host)
    running = engine.engine.admit(engine.engine.plan(engine._request("acme", [1, 2, 3], 0)))
    assert running is not None
    beacon = await log.beacon()
    await until(lambda: log.echoed("w0", beacon))
    assert len(log.copies("w0")) == 3


async def test_all_ranks_of_a_worker_share_a_pulse_and_keep_apart(log: HookLog, host: HookHost) -> None:
    engines = [SteppedEngine("w0", log.keyring, rank=rank) for rank in range(2)]
    for engine in engines:
        await engine.start(host)
    engines[0].serve("acme", [1, 2])
    engines[1].serve("acme", [1, 2, 3])
    beacon = await log.beacon()
    await until(lambda: all(log.echoed("w0", beacon, rank) for rank in range(2)))
    assert (len(log.copies("w0", 0)), len(log.copies("w0", 1))) == (2, 3)
    engines[1].restart()
    await applied(log, engines[1])
    assert (len(log.copies("w0", 0)), len(log.copies("w0", 1))) == (2, 0)


async def test_a_lost_record_is_a_gap_for_readers_until_the_snapshot(log: HookLog, host: HookHost) -> None:
    engine = SteppedEngine("w0", log.keyring)
    hook = await engine.start(host)
    engine.serve("acme", [1, 2])
    hook.drop_next(1, repair_after_s=0.5)
    engine.serve("acme", [1, 2, 3, 4])
    engine.serve("beta", [7])
    await until(lambda: log.outcomes[Outcome.GAP] == 1)
    await until(lambda: log.state(_stream(engine)).status is StreamStatus.LIVE)
    await applied(log, engine)
    assert len(log.copies("w0")) == engine.truth() == 5
    assert (hook.dropped, log.outcomes[Outcome.GAP]) == (1, 1)


async def test_a_full_buffer_drops_the_batch_not_the_number_and_repairs_itself(log: HookLog) -> None:
    pace = HostPace(emitter=EmitterLimits(max_records=3))
    async with HookHost(log.connection, log.keyring, SIGNERS[Role.ENROLMENT], pace=pace) as host:
        engine = SteppedEngine("w0", log.keyring)
        hook = await engine.start(host)
        for number in range(8):
            engine.serve("acme", [number])
        assert hook.dropped > 0
        await until(lambda: not hook.repair.pending)
        await applied(log, engine)
        assert log.state(_stream(engine)).status is StreamStatus.LIVE
        assert len(log.copies("w0")) == engine.truth() == 8
        assert log.outcomes[Outcome.GAP] >= 1


async def test_a_resync_request_is_answered_with_a_snapshot(log: HookLog, host: HookHost) -> None:
    engine = SteppedEngine("w0", log.keyring)
    hook = await engine.start(host)
    engine.serve("acme", [1, 2, 3])
    await log.resync(_stream(engine))
    await until(lambda: hook.repair.written == 1)
    await applied(log, engine)
    assert len(log.copies("w0")) == 3
    ends = [e for r in log.records for e in decode_batch(r.value).stream_events if isinstance(e, SnapshotEnd)]
    assert len(ends) == 1


async def test_a_restarted_engine_begins_a_new_epoch_and_its_old_copies_are_gone(
    log: HookLog, host: HookHost
) -> None:
    engine = SteppedEngine("w0", log.keyring)
    await engine.start(host)
    engine.serve("acme", [1, 2, 3])
    await applied(log, engine)
    old = _stream(engine)
    engine.restart()
    engine.serve("acme", [1])
    await applied(log, engine)
    await until(lambda: len(log.copies("w0")) == 1)
    assert log.registry.superseded(old)
    assert log.states[old].status is StreamStatus.CLOSED
    assert log.states[old].copy_count() == 0
    beacon = await log.beacon()
    await until(lambda: log.echoed("w0", beacon))


async def test_a_fenced_or_superseded_hook_registers_again_and_restates(log: HookLog, host: HookHost) -> None:
    engine = SteppedEngine("w0", log.keyring)
    await engine.start(host)
    engine.serve("acme", [1, 2, 3])
    await applied(log, engine)
    fenced = _stream(engine)
    await log.writer.append(Fenced(worker="w0", rank=0, epoch=fenced.epoch, evidence="operator"))
    await until(lambda: engine.hook.stream not in (None, fenced))
    await applied(log, engine)
    await until(lambda: len(log.copies("w0")) == 3)
    state = log.current("w0")
    assert state is not None
    assert (state.status, state.engine_life) == (StreamStatus.LIVE, engine.engine.life)


async def test_a_reattached_hook_continues_the_engine_life_in_a_new_epoch(
    log: HookLog, host: HookHost
) -> None:
    engine = SteppedEngine("w0", log.keyring)
    stream = engine.stream()
    first = await engine.start(host, stream)
    engine.serve("acme", [1, 2])
    await applied(log, engine)
    old = _stream(engine)
    await host.remove(first, silently=True)
    await engine.start(host, stream)
    await applied(log, engine)
    await until(lambda: len(log.copies("w0")) == 2)
    registrations = log.registry.registrations
    assert registrations[old].body.engine_life == registrations[_stream(engine)].body.engine_life


async def test_a_deletion_is_obeyed_and_acked_and_other_tenants_stay_warm(
    log: HookLog, host: HookHost
) -> None:
    engine = SteppedEngine("w0", log.keyring)
    await engine.start(host)
    engine.serve("acme", [1, 2, 3])
    engine.serve("beta", [1, 2])
    number = await log.delete("acme")
    await until(lambda: log.discharged("w0", "acme", number))
    standing = log.standing("w0", "acme", number)
    assert standing is not None
    assert (standing.removed, standing.old_left) == (3, 0)
    await applied(log, engine)
    assert len(log.copies("w0")) == engine.truth() == 2
    assert log.standing("w0", "beta", number) is None
    engine.serve("acme", [1, 2])
    await applied(log, engine)
    provenances = {a.admitted_after for _, a in log.state(_stream(engine)).copies["gpu", 0].values()}
    assert number in provenances


async def test_a_mark_of_the_future_is_claimed_as_what_is_installed(log: HookLog, host: HookHost) -> None:
    engine = SteppedEngine("w0", log.keyring)
    hook = await engine.start(host)
    running = engine.engine.admit(engine.engine.plan(engine._request("acme", [1, 2, 3], 0)))
    assert running is not None
    engine.step(hook.installed + 7)
    await applied(log, engine)
    copies = log.state(_stream(engine)).copies["gpu", 0].values()
    assert {attributes.admitted_after for _, attributes in copies} == {hook.installed}


async def test_an_order_is_discharged_only_after_older_requests_have_ended(
    log: HookLog, host: HookHost
) -> None:
    engine = SteppedEngine("w0", log.keyring)
    await engine.start(host)
    running = engine.begin("acme", [1, 2], outputs=3)
    number = await log.delete("acme")
    await until(lambda: engine.hook.installed >= number and engine.truth() == 0)
    engine.decode(running)
    await until(lambda: engine.truth() == 0)
    assert not log.discharged("w0", "acme", number)
    engine.decode(running)
    engine.finish(running)
    await until(lambda: log.discharged("w0", "acme", number))
    await applied(log, engine)
    assert log.copies("w0") == set()
    standing = log.standing("w0", "acme", number)
    assert standing is not None
    assert standing.removed == 4


async def test_a_prefix_goes_with_its_descendants_only(log: HookLog, host: HookHost) -> None:
    engine = SteppedEngine("w0", log.keyring)
    await engine.start(host)
    engine.serve("acme", [1, 2, 3, 4])
    engine.serve("acme", [9, 8])
    number = await log.delete(engine.ids("acme", [1, 2]))
    await until(lambda: log.discharged("w0", "acme", number))
    await applied(log, engine)
    assert len(log.copies("w0")) == engine.truth() == 3


async def test_a_new_epoch_acks_every_standing_order_and_a_nonce_gets_a_fresh_ack(
    log: HookLog, host: HookHost
) -> None:
    engine = SteppedEngine("w0", log.keyring)
    await engine.start(host)
    engine.serve("acme", [1])
    first = await log.delete("acme")
    second = await log.delete("beta")
    await until(lambda: log.discharged("w0", "acme", first) and log.discharged("w0", "beta", second))
    nonce = await log.nonce(first)
    await until(lambda: nonce in log.state(_stream(engine)).nonces.values())
    engine.restart()
    await applied(log, engine)
    await until(lambda: log.discharged("w0", "acme", first) and log.discharged("w0", "beta", second))


async def test_a_legal_hold_delays_a_deletion_until_it_is_released(log: HookLog, host: HookHost) -> None:
    engine = SteppedEngine("w0", log.keyring)
    await engine.start(host)
    engine.serve("acme", [1, 2])
    await log.writer.append(HoldSet(hold="case-1", domain="acme", reason="court"))
    number = await log.delete("acme")
    other = await log.delete("beta")
    await until(lambda: log.discharged("w0", "beta", other))
    assert engine.truth() == 2
    await log.writer.append(HoldReleased(hold="case-1"))
    await until(lambda: log.discharged("w0", "acme", number))
    assert engine.truth() == 0


async def test_a_domain_that_is_added_to_the_ring_later_counts_at_once(log: HookLog, tmp_path: Path) -> None:
    path = tmp_path / "keyring.json"
    path.write_text("")
    for domain in DOMAINS:
        path.write_text(with_domain(path.read_text(), domain, sha256(domain.encode())))
    log.keyring = load_keyring(path)
    async with HookHost(log.connection, load_keyring(path), SIGNERS[Role.ENROLMENT]) as host:
        engine = SteppedEngine("w0", host.keyring)
        await engine.start(host)
        path.write_text(with_domain(path.read_text(), "late", sha256(b"late")))
        await log.writer.append(DomainCreated(domain="late", tenant="late"))
        engine.serve("late", [1, 2])
        await applied(log, engine)
        assert len(log.copies("w0")) == 2
        assert log.state(_stream(engine)).holders["gpu"].unassigned == 0
        number = await log.delete("late")
        await until(lambda: log.discharged("w0", "late", number))
        assert engine.truth() == 0


async def test_an_old_copy_that_lands_late_is_told_removed_and_told_again(
    log: HookLog, host: HookHost
) -> None:
    engine = SteppedEngine("w0", log.keyring)
    await engine.start(host)
    engine.serve("acme", [1, 2])
    number = await log.delete("acme")
    later = await log.delete(engine.ids("acme", [8]))
    await until(lambda: log.discharged("w0", "acme", number) and log.discharged("w0", "acme", later))
    before = len(log.told("w0", "acme", number))
    # Nobody knows when this was admitted, as with what a connector brings back.
    engine.engine.admit(engine.engine.plan(engine._request("acme", [1, 2, 3], 0)))
    engine.step(None)
    await until(lambda: len(log.told("w0", "acme", number)) > before + 1)
    assert log.told("w0", "acme", number)[before:] == [3, 0]
    assert set(log.told("w0", "acme", later)) == {0}
    await applied(log, engine)
    assert log.copies("w0") == set()
    assert engine.truth() == 0


async def test_a_destroyed_domain_leaves_the_stream_whole_and_its_copies_unassigned(
    log: HookLog, tmp_path: Path
) -> None:
    path = tmp_path / "keyring.json"
    path.write_text("")
    for domain in DOMAINS:
        path.write_text(with_domain(path.read_text(), domain, sha256(domain.encode())))
    async with HookHost(log.connection, load_keyring(path), SIGNERS[Role.ENROLMENT]) as host:
        engine = SteppedEngine("w0", log.keyring)
        hook = await engine.start(host, EngineStream("w0", 0, host.keyring, engine.config()))
        engine.serve("acme", [1, 2, 3])
        engine.serve("beta", [1, 2])
        await applied(log, engine)
        assert len(log.copies("w0")) == 5
        ring_without = json.loads(path.read_text())
        del ring_without["domains"]["acme"]
        path.write_text(json.dumps(ring_without))
        await until(lambda: log.state(_stream(engine)).holders["gpu"].unassigned == 3)
        engine.serve("acme", [1, 2, 3, 4, 5])
        engine.serve("beta", [1, 2, 3])

        async def whole() -> None:
            beacon = await log.beacon()
            await until(lambda: log.echoed("w0", beacon))
            await applied(log, engine)
            state = log.state(_stream(engine))
            assert (state.status, state.fault) == (StreamStatus.LIVE, "")
            (pulsed,) = log.pulses["w0", 0].checksums
            assert pulsed.count == len(log.copies("w0")) == 3
            assert int.from_bytes(pulsed.checksum) == sum(map(int.from_bytes, log.copies("w0"))) % (1 << 128)
            assert state.holders["gpu"].unassigned == 5

        await whole()
        assert log.outcomes[Outcome.GAP] == 0
        hook.new_epoch()
        await whole()
        number = await log.delete("beta")
        await until(lambda: log.discharged("w0", "beta", number))
        assert engine.truth() == 0


async def test_a_hook_waits_until_the_log_enables_the_version_that_it_writes(
    kafka: str, topic_prefix: str
) -> None:
    async with (
        HookLog(kafka, topic_prefix, enables=False) as log,
        HookHost(log.connection, log.keyring, SIGNERS[Role.ENROLMENT]) as host,
    ):
        engine = SteppedEngine("w0", log.keyring)
        engine.hook = await host.add(HookIdentity("w0"), engine.engine.life, engine, engine.stream())
        reporting = engine.hook.reporting
        await until(lambda: "event_batch" in reporting.why_not_open)
        assert not log.registry.registrations
        await log.writer.append(SchemaEnabled(record="event_batch", version=1))
        assert await engine.hook.opened(60)
        assert reporting.why_not_open == ""


async def test_a_truncated_control_log_ends_all_pulses_and_is_told(log: HookLog) -> None:
    async with HookHost(log.connection, log.keyring, SIGNERS[Role.ENROLMENT]) as host:
        engine = SteppedEngine("w0", log.keyring)
        await engine.start(host)
        await until(lambda: ("w0", 0) in log.pulses)
        # As if what this process has read had been cut off the log.
        host.registry.next_offset += 100
        error = await asyncio.wait_for(host.failure(), 60)
        assert isinstance(error, LogTruncatedError)
        assert host.failed is error
        sent = host._pulser.sent
        engine.serve("acme", [1])
        await asyncio.wait_for(engine.hook._services.emitter.flush(10), 10)
        assert host._pulser.sent == sent


async def test_a_hook_that_lost_a_task_stops_pulsing(log: HookLog) -> None:
    class Broken(SteppedEngine):
        async def remove(
            self, hashes: Sequence[EngineHash], timeout_s: float, *, request: int
        ) -> RemovalResult:
            raise ZeroDivisionError

    async with HookHost(log.connection, log.keyring, SIGNERS[Role.ENROLMENT]) as host:
        broken, well = Broken("w0", log.keyring), SteppedEngine("w1", log.keyring)
        await broken.start(host)
        await well.start(host)
        broken.serve("acme", [1])
        number = await log.delete("acme")
        assert isinstance(await asyncio.wait_for(host.failure(), 60), ZeroDivisionError)
        assert broken.hook.pulse() is None
        await until(lambda: log.discharged("w1", "acme", number))
        assert well.hook.pulse() is not None


async def test_statements_agree_with_the_fold(log: HookLog) -> None:
    hook_pace = HostPace().hook
    pace = HostPace(hook=type(hook_pace)(statement_s=0.3))
    async with HookHost(log.connection, log.keyring, SIGNERS[Role.ENROLMENT], pace=pace) as host:
        engine = SteppedEngine("w0", log.keyring)
        await engine.start(host)
        engine.serve("acme", [1, 2, 3])

        def stated() -> list[Statement]:
            parts = [part for r in log.records for part in decode_batch(r.value).parts]
            return [e for part in parts for e in part.events if isinstance(e, Statement)]

        await until(lambda: [statement.count for statement in stated()][-2:] == [3, 3])
        # One that was made before the prompt came states nothing or none.
        assert {statement.count for statement in stated()} <= {0, 3}
        state = log.state(_stream(engine))
        assert state.status is StreamStatus.LIVE
        assert {a.state for _, a in state.copies["gpu", 0].values()} == {CopyState.COMMITTED}
        signed = [r for r in log.records if b'"statement"' in r.value]
        assert all(record.signature is not None for record in signed)


async def test_a_log_without_genesis_is_refused(kafka: str, topic_prefix: str) -> None:
    connection = KafkaConnection(kafka, TopicNames(topic_prefix))
    await TopicAdmin(connection, partitions=1).ensure()
    pace = HostPace(genesis_s=0.3)
    with pytest.raises(NoGenesisError):
        await HookHost(connection, ring(), SIGNERS[Role.ENROLMENT], pace=pace).start()
