"""The fold of the log itself, in memory, up to given positions: what any index must equal."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from events.fold.record import fold_record
from events.fold.registry import Registry
from events.fold.state import StreamState
from events.fold.stranger import counts
from events.ids import StreamKey
from events.kafka.connection import KafkaConnection, LogTail
from events.topic import EVENTS


async def fold_log(
    connection: KafkaConnection, positions: Mapping[int, int], registry: Registry | None = None
) -> tuple[list[StreamState], dict[int, int]]:
    """(states, first offset read by partition) of `kv.events` before `positions[p]`.

    A first offset above 0 means that the log's head is gone: the fold then has a base only where a
    snapshot follows. Streams that nobody registered there in `registry` are left out if one is given: the digest
    doesn't count them, and there can be any number. Raises LogUnavailableError.
    """

    def admit(partition: int, stream: StreamKey, _: int) -> bool:
        return registry is None or counts(registry, stream, partition)

    topic = connection.topic(EVENTS)
    states: dict[int, dict[StreamKey, StreamState]] = {number: {} for number in positions}
    tail = LogTail(connection, {(topic, number): 0 for number in positions})
    if not positions:
        return [], {}
    await tail.start()
    try:
        starts = {number: start for (_, number), start in (await tail.beginning_offsets()).items()}
        ends = {number: end for (_, number), end in (await tail.end_offsets()).items()}
        for number, start in starts.items():
            tail.seek(topic, number, start)
        reached = dict(starts)
        wanted = {number: min(position, ends[number]) for number, position in positions.items()}
        while any(reached[number] < wanted[number] for number in wanted):
            for record in await tail.fetch(timeout_ms=500):
                if record.offset < wanted[record.partition]:
                    fold_record(states[record.partition], record.value, partial(admit, record.partition))
            reached = {number: await tail.position(topic, number) for number in reached}
    finally:
        await tail.stop()
    return [state for table in states.values() for state in table.values()], starts
