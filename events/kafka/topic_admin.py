"""Making and checking the log's topics: what `events.topic` states against what a broker has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from aiokafka.structs import TopicPartition

from events.kafka.bootstrap import leaves_nothing
from events.kafka.connection import PRODUCER_LIMIT_BYTES, KafkaConnection, LogUnavailableError
from events.topic import ALL, DEAD, Topic

_LISTED_TIMEOUT_S = 60.0
_LISTED_POLL_S = 0.05

CHECKED = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "max.message.bytes",
    "compression.type",
    "message.timestamp.type",
)
FATAL = frozenset({"cleanup.policy", "compression.type"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One topic's setting that differs from what the log needs; `fatal` ones make the log unsafe to use."""

    topic: str
    setting: str
    wanted: str
    found: str
    fatal: bool


def wanted_config(topic: Topic, *, min_insync: int) -> dict[str, str]:
    """Broker settings of a topic, as strings, by Kafka's own names."""
    return {
        "cleanup.policy": "compact" if topic.compacted else "delete",
        "retention.ms": str(topic.retention_ms),
        "min.insync.replicas": str(min_insync),
        "unclean.leader.election.enable": "false",
        # A dead letter holds a whole record, in base64.
        "max.message.bytes": str(2 * PRODUCER_LIMIT_BYTES if topic is DEAD else PRODUCER_LIMIT_BYTES),
        # The broker unpacks what anybody sends: no record can need a codec that a reader lacks.
        "compression.type": "uncompressed",
        # One clock for times and retention: a writer's wrong clock must not age or rejuvenate a record.
        "message.timestamp.type": "LogAppendTime",
    }


class TopicAdmin:
    """`partitions` is N of `kv.events` and `kv.pulse`, fixed for the life of the log."""

    def __init__(self, connection: KafkaConnection, *, partitions: int, replication: int = 1) -> None:
        self._connection = connection
        self._partitions = partitions
        self._replication = replication
        self._min_insync = 2 if replication >= 3 else 1

    async def ensure(self) -> tuple[list[str], list[Finding]]:
        """Makes the topics that are missing and checks the others: (names made, findings). Never alters an
        existing topic. Raises LogUnavailableError if the broker doesn't answer or refuses."""
        async with _Admin(self._connection) as admin:
            existing = set(await admin.list_topics())
            missing = [topic for topic in ALL if self._connection.topic(topic) not in existing]
            made: list[str] = []
            if missing:
                answer = await admin.create_topics([self._new(topic) for topic in missing])
                for name, code, *_ in answer.topic_errors:
                    error = for_code(code)
                    if error.errno and error is not TopicAlreadyExistsError:
                        raise LogUnavailableError(f"topic {name} was refused: {error.__name__}")
                    if not error.errno:
                        made.append(str(name))
                await self._listed(admin)
        return made, await self.check()

    async def _listed(self, admin: Any) -> None:
        """Waits until the broker lists every topic; it learns of a new one shortly after it was made."""
        wanted = {self._connection.topic(topic) for topic in ALL}
        try:
            async with asyncio.timeout(_LISTED_TIMEOUT_S):
                while not wanted <= set(await admin.list_topics()):  # noqa: ASYNC110 - a broker tells nobody
                    await asyncio.sleep(_LISTED_POLL_S)
        except TimeoutError as error:
            raise LogUnavailableError("the broker does not list the topics that were made") from error

    async def check(self) -> list[Finding]:
        """What differs from the statement in `events.topic`, worst first. Raises LogUnavailableError."""
        findings: list[Finding] = []
        async with _Admin(self._connection) as admin:
            existing = set(await admin.list_topics())
            present = [topic for topic in ALL if self._connection.topic(topic) in existing]
            findings.extend(
                Finding(self._connection.topic(topic), "topic", "exists", "missing", True)
                for topic in ALL
                if topic not in present
            )
            described = await admin.describe_topics([self._connection.topic(topic) for topic in present])
            counts = {str(entry["topic"]): len(entry["partitions"]) for entry in described}
            configs = await _configs(admin, [self._connection.topic(topic) for topic in present])
        for topic in present:
            name = self._connection.topic(topic)
            count = topic.partitions or self._partitions
            if counts.get(name) != count:
                findings.append(Finding(name, "partitions", str(count), str(counts.get(name)), True))
            for setting, value in wanted_config(topic, min_insync=self._min_insync).items():
                found = configs[name].get(setting, "")
                if found != value and not _kept_longer(setting, value, found):
                    findings.append(Finding(name, setting, value, found, setting in FATAL))
        return sorted(findings, key=lambda finding: (not finding.fatal, finding.topic, finding.setting))

    def _new(self, topic: Topic) -> Any:
        config = wanted_config(topic, min_insync=self._min_insync)
        return NewTopic(
            self._connection.topic(topic),
            topic.partitions or self._partitions,
            self._replication,
            topic_configs=config,
        )


async def retention_of(connection: KafkaConnection, topic: Topic) -> tuple[int, int]:
    """(milliseconds, bytes) that the broker keeps of each partition, -1: without end. Raises LogUnavailableError."""
    name = connection.topic(topic)
    async with _Admin(connection) as admin:
        found = (await _configs(admin, [name]))[name]
    return int(found.get("retention.ms", -1)), int(found.get("retention.bytes", -1))


async def drop_records(connection: KafkaConnection, topic: Topic, upto: Mapping[int, int]) -> None:
    """Deletes each partition's records below an offset, for good. Raises LogUnavailableError."""
    name = connection.topic(topic)
    async with _Admin(connection) as admin:
        await admin.delete_records(
            {TopicPartition(name, p): RecordsToDelete(before_offset=at) for p, at in upto.items()}
        )


class _Admin:
    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._client: Any = None

    async def __aenter__(self) -> Any:
        self._client = AIOKafkaAdminClient(
            bootstrap_servers=self._connection.bootstrap, request_timeout_ms=15_000
        )
        leaves_nothing(self._client._client)
        try:
            await self._client.start()
        except KafkaError as error:
            await self._client.close()
            raise LogUnavailableError(f"no answer from Kafka at {self._connection.bootstrap}") from error
        except asyncio.CancelledError:
            await self._client.close()
            raise
        return self._client

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._client.close()
        if isinstance(error, KafkaError):
            raise LogUnavailableError(f"{type(error).__name__} from Kafka's admin interface") from error


async def _configs(admin: Any, names: list[str]) -> dict[str, dict[str, str]]:
    resources = [
        ConfigResource(ConfigResourceType.TOPIC, name, {setting: None for setting in CHECKED})
        for name in names
    ]
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for answer in await admin.describe_configs(resources) if resources else []:
        for resource in answer.resources:
            _, _, _, name, entries = resource[:5]
            found[str(name)] = {str(entry[0]): str(entry[1]) for entry in entries}
    return found


def _kept_longer(setting: str, wanted: str, found: str) -> bool:
    """A topic that keeps records longer than asked is no finding."""
    if setting != "retention.ms" or not found.lstrip("-").isdigit():
        return False
    return found == "-1" or (wanted != "-1" and int(found) > int(wanted))
