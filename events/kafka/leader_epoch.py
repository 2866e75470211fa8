"""How often the leadership of a partition has changed: a log can lose acknowledged records only when it does.

Kafka's ListOffsets, which says it since version 4 (KIP-320). The client library speaks that version's answer, but
its question has a field of the wrong width, so the question is stated here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, ClassVar

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, LeaderNotAvailableError, for_code
from aiokafka.protocol.api import Request, RequestStruct
from aiokafka.protocol.offset import OffsetResponse_v4
from aiokafka.protocol.types import Array, Int8, Int32, Int64, Schema, String

_LIST_OFFSETS, _VERSION = 2, 4
_NO_REPLICA, _UNCOMMITTED, _ANY_EPOCH, _LATEST = -1, 0, -1, -1


class _Question(RequestStruct):  # type: ignore[misc]
    API_KEY: ClassVar[int] = _LIST_OFFSETS
    API_VERSION: ClassVar[int] = _VERSION
    RESPONSE_TYPE = OffsetResponse_v4
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("isolation_level", Int8),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(("partition", Int32), ("current_leader_epoch", Int32), ("timestamp", Int64)),
                ),
            ),
        ),
    )


class _ListOffsets(Request[_Question]):  # type: ignore[misc]
    API_KEY: ClassVar[int] = _LIST_OFFSETS

    def __init__(self, topic: str, partitions: list[int]) -> None:
        self._topics = [(topic, [(number, _ANY_EPOCH, _LATEST) for number in partitions])]

    def build(self, request_struct_class: type[_Question]) -> _Question:
        return request_struct_class(_NO_REPLICA, _UNCOMMITTED, self._topics)


async def leader_epochs(client: Any, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """By partition whose leader answers, its epoch; -1 from a broker that keeps none. One that doesn't answer
    takes nothing from the others.

    `client` is an `aiokafka.client.AIOKafkaClient`. Raises the library's KafkaError when nobody answers.
    """
    await client.add_topic(topic)
    by_leader: dict[int, list[int]] = defaultdict(list)
    trouble: KafkaError | None = None
    for number in partitions:
        leader = client.cluster.leader_for_partition(TopicPartition(topic, number))
        if leader is None or leader < 0:
            trouble = LeaderNotAvailableError(f"{topic}[{number}] has no leader")
        else:
            by_leader[leader].append(number)
    found: dict[int, int] = {}
    for leader, numbers in by_leader.items():
        try:
            answer = await client.send(leader, _ListOffsets(topic, numbers))
        except KafkaError as error:
            trouble = error
            continue
        for _, answered in answer.topics:
            for number, code, _, _, epoch in answered:
                if code:
                    trouble = for_code(code)(f"{topic}[{number}]")
                else:
                    found[int(number)] = int(epoch)
    if trouble is not None:
        client.force_metadata_update()
        if not found:
            raise trouble
    return found
