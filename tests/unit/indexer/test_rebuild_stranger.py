"""A rebuild is bounded as the indexer is, and comes to the same rows for whoever is registered."""

from __future__ import annotations

from typing import cast

import pytest

from events.fold.digest import index_digest
from events.fold.registry import Registry
from events.ids import EvictReason
from events.kafka.connection import KafkaConnection, LogTail, RawRecord
from events.kafka.partition_log import PartitionLog
from events.keyring import KeyRing
from events.model.part import BlockEvicted
from events.signing import verify
from indexer.rebuild import NEAR_RECORDS, Rebuild, RebuildError, draw_near
from indexer.rebuild_fold import PartitionRebuild, RowIds
from indexer.stranger import StrangerLimits
from tests.support.log import ControlLog, StreamBuilder, block, declared, opened, stored
from tests.support.store_contract import TOPIC, comparable, fold

BOUND = StrangerLimits().max_streams
PASSED, TO_COME = 2, 1_000


def test_a_rebuild_lets_streams_of_nobody_go_with_all_their_rows() -> None:
    log = ControlLog()
    mine = StreamBuilder(epoch_no=log.register())
    registry = Registry(verify)
    for offset, (value, signature) in enumerate(log.records):
        registry.fold(offset, value, signature)
    values = [mine.seal(opened(), events=[declared()]).value]
    for number in range(2 * (BOUND + 20)):
        stranger = StreamBuilder(f"s{number}", epoch_no=(PASSED, TO_COME)[number % 2])
        values.append(stranger.seal(opened(), events=[declared(), stored([block(number)])]).value)
        gone = BlockEvicted(holder="gpu", group=0, ids=(block(number),), reason=EvictReason.CAPACITY)
        values.append(stranger.seal(events=[stored([block("b", number)]), gone]).value)
    values.append(mine.seal(events=[stored([block(1), block(2)])]).value)
    records = [RawRecord(TOPIC, 0, at, None, value, None, 0) for at, value in enumerate(values)]
    part = PartitionRebuild(0, 0, RowIds(), registry=registry)
    for record in records:
        part.fold(record)
    assert len(part.states) == len(part.names) == BOUND + 1
    assert len(part.spans) == BOUND
    assert len(part.dead) == StrangerLimits().max_letters
    assert index_digest(part.states, registry) == index_digest(fold(records).values(), registry)
    part.prune(registry)
    assert len(list(part.copies())) == BOUND + 2
    own = [state for state in part.states if state.key.worker == mine.worker]
    assert comparable(own) == comparable([fold(records)[own[0].key]])


def test_a_rebuild_forgets_at_its_end_whom_control_has_passed_since() -> None:
    log = ControlLog()
    registry = Registry(verify)
    number = len(log.records)
    for offset, (value, signature) in enumerate(log.records):
        registry.fold(offset, value, signature)
    liar = StreamBuilder("liar", epoch_no=number)
    value = liar.seal(opened(), events=[declared(), stored([block(1)])]).value
    part = PartitionRebuild(0, 0, RowIds(), registry=registry)
    part.fold(RawRecord(TOPIC, 0, 0, None, value, None, 0))
    assert len(part.states) == 1
    log.register()
    registry.fold(number, *log.records[number])
    part.prune(registry)
    assert (part.states, part.names, list(part.copies())) == ([], {}, [])


class ReceivedTail:
    """All records at once."""

    def __init__(self, records: list[RawRecord]) -> None:
        self.records = records

    async def fetch(self, **_: int) -> list[RawRecord]:
        records, self.records = self.records, []
        return records


async def test_workers_that_register_while_a_rebuild_runs_are_nobody_s_at_no_time() -> None:
    log = ControlLog()
    registry = Registry(verify)

    async def catch_up() -> None:
        for offset in range(registry.next_offset, len(log.records)):
            registry.fold(offset, *log.records[offset])

    await catch_up()
    builders = [
        StreamBuilder(f"w{number}", epoch_no=log.register(f"w{number}")) for number in range(BOUND + 9)
    ]
    values = [one.seal(opened(), events=[declared(), stored([block(one.worker)])]).value for one in builders]
    records = [RawRecord(TOPIC, 0, at, None, value, None, 0) for at, value in enumerate(values)]
    run = Rebuild(
        "",
        KafkaConnection("127.0.0.1:1"),
        cast(PartitionLog, None),
        registry,
        catch_up=catch_up,
        keyring=KeyRing({}),
        refused={},
        monotonic_s=lambda: 0.0,
        progress=lambda _: None,
    )
    part = run._parts[0] = PartitionRebuild(0, 0, RowIds(), registry=registry)
    run._tails[0] = cast(LogTail, ReceivedTail(records))
    await run._fold_to({0: len(records)}, None)
    assert len(part.states) == BOUND + 9
    assert index_digest(part.states, registry) == index_digest(fold(records).values(), registry)


async def test_a_rebuild_doesn_t_lock_an_index_that_it_can_t_come_near_to() -> None:
    rounds: list[int] = []

    async def follow() -> int:
        rounds.append(NEAR_RECORDS)
        return NEAR_RECORDS - (len(rounds) > most)

    most = 3
    await draw_near(follow)
    assert len(rounds) == 4
    most = 10**6
    with pytest.raises(RebuildError, match="records came"):
        await draw_near(follow)
