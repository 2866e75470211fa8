"""Topics: names, keys, partitions and retention as frozen data; `kvledger topics` makes and checks them."""

from __future__ import annotations

from dataclasses import dataclass

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
FOREVER_MS = -1

SIGNATURE_HEADER = "kvl-sig"
"""Kafka header that carries an Ed25519 signature over the record's header line."""
MAX_RECORD_BYTES = 1_000_000
"""Writers split above this; brokers refuse above `max.message.bytes`, set a little higher."""


@dataclass(frozen=True, slots=True)
class Topic:
    """`partitions` None: N, fixed for the life of the log. `keyed_by` says what a record's key is."""

    name: str
    partitions: int | None
    retention_ms: int
    compacted: bool
    keyed_by: str
    content: str


EVENTS = Topic("kv.events", None, 14 * DAY_MS, False, "stream", "EventBatch")
PULSE = Topic("kv.pulse", None, HOUR_MS, False, "worker", "Pulse")
SIGNALS = Topic("kv.signals", 1, HOUR_MS, False, "reader or worker", "Beacon, ResyncRequested, ResetTurn")
CONTROL = Topic("kv.control", 1, FOREVER_MS, False, "kind", "control records")
QUOTA = Topic("kv.quota", 1, FOREVER_MS, True, "tenant and tier", "QuotaState")
AUDIT = Topic("kv.audit", 1, FOREVER_MS, False, "log", "AuditRecord")
ACCESS = Topic("kv.access", 1, 30 * DAY_MS, False, "principal", "AccessBatch")
SUBJECTS = Topic("kv.subjects", 1, FOREVER_MS, False, "subject", "SubjectBound")
DEAD = Topic("kv.dead", 1, 30 * DAY_MS, False, "topic, partition, offset", "DeadRecord")

ALL = (EVENTS, PULSE, SIGNALS, CONTROL, QUOTA, AUDIT, ACCESS, SUBJECTS, DEAD)
DEFAULT_PARTITIONS = 8


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The topics' real names under an optional prefix, so that several logs share one broker."""

    prefix: str = ""

    def of(self, topic: Topic) -> str:
        return f"{self.prefix}{topic.name}"


def stream_record_key(worker: str, rank: int) -> bytes:
    """Key of all records of a (worker, rank), whatever the epoch."""
    return f"{worker}/{rank}".encode()


def pinned_partition(worker: str, rank: int, partitions: int) -> int:
    """The partition a new registration pins: FNV-1a of the key, whatever a client library would choose."""
    value = 0xCBF29CE484222325
    for byte in stream_record_key(worker, rank):
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value % partitions
