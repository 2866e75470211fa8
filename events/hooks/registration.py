"""Makes an epoch: a fresh id and key at the first publication, registered in `kv.control`.

A copy of this process (a fork, a restored checkpoint) must not write under the same epoch, so an epoch
remembers which process made it: boot id, process id and start time.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from events.errors import GrantError, KvledgerError
from events.fold.registry import Registry
from events.hooks.client_task import guarded
from events.hooks.engine_process import process_facts
from events.hooks.stream import Epoch
from events.ids import StreamKey
from events.kafka.connection import LogTruncatedError
from events.kafka.control import Appended
from events.model.control import Registered
from events.signing import Signer
from events.topic import pinned_partition

EVENT_BATCH_VERSION = 1
_NAME = re.compile(r"^[A-Za-z0-9._:@/+\-]{1,200}$")


class RegistrationError(KvledgerError):
    """The log did not accept the registration, or would not: then nothing was written. `reason` is why folds ignore
    it. A missing grant, or one that is bound to other workers (`outside_grant`), needs the operator; the hook itself
    tries again."""

    def __init__(self, worker: str, rank: int, reason: str) -> None:
        super().__init__(f"{worker}/{rank} is not registered: {reason}")
        self.worker = worker
        self.rank = rank
        self.reason = reason


class SchemaNotEnabledError(KvledgerError):
    """The log doesn't allow the version that this hook writes: readers may not understand it yet. The hook
    waits until the operator enables it (`kvledger up` does so for a new log)."""

    def __init__(self, record: str, version: int, enabled: int) -> None:
        super().__init__(
            f"the log enables {record} up to version {enabled}, this hook writes version {version}"
        )
        self.record = record
        self.version = version
        self.enabled = enabled


class ControlAppender(Protocol):
    """`events.kafka.control.ControlWriter`, as far as a registration needs it."""

    async def append(self, body: Registered) -> Appended: ...


class ControlFollower(Protocol):
    """`events.kafka.control.ControlTail`, likewise."""

    @property
    def registry(self) -> Registry: ...

    async def wait_for(self, offset: int, timeout_s: float) -> bool: ...


def process_identity() -> str:
    """Names this life of this process: boot id, pid, start time; parts that the system lacks are empty."""
    pid, started, boot = process_facts()
    return f"{boot}/{pid}/{started}"


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """Where in a Kubernetes cluster the engine runs; see `Registered`."""

    pod: str | None = None
    container: str | None = None
    container_id: str | None = None

    @classmethod
    def told(cls, environment: Mapping[str, str] = os.environ) -> EnginePlace:
        """As `KVLEDGER_POD_UID`, `KVLEDGER_CONTAINER` and `KVLEDGER_CONTAINER_ID` say: the first comes from the
        downward API. What can't be a name there is left out: it could be matched with nothing."""
        found = [environment.get(f"KVLEDGER_{name}", "") for name in ("POD_UID", "CONTAINER", "CONTAINER_ID")]
        return cls(*(text if _NAME.match(text) else None for text in found))


class Registrar:
    """Registers epochs under the writer's enrolment key. `entropy(n)` gives n secret random bytes."""

    def __init__(
        self,
        writer: ControlAppender,
        follower: ControlFollower,
        *,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
        timeout_s: float = 15.0,
        place: EnginePlace | None = None,
    ) -> None:
        self._place = place or EnginePlace.told()
        self._writer = writer
        self._follower = follower
        self._entropy = entropy
        self._timeout_s = timeout_s

    async def register(
        self, worker: str, rank: int, engine_life: str, *, endpoint: str | None, model: str | None
    ) -> Epoch:
        """A new epoch with its own key, which this process' registry has installed when this returns.

        Raises SchemaNotEnabledError before anything is written, RegistrationError (also before, where the key may
        not speak for the worker), SignatureError without an enrolment key, LogUnavailableError: then the log may
        hold the registration all the same, and a later attempt, a new epoch, supersedes it. LogTruncatedError if
        the log has taken it at a place that this process has read another record at: the process must begin again.
        """
        registry = self._follower.registry
        enabled = registry.schema.get("event_batch", 0)
        if enabled < EVENT_BATCH_VERSION:
            raise SchemaNotEnabledError("event_batch", EVENT_BATCH_VERSION, enabled)
        signer = Signer.from_seed(self._entropy(32))
        body = Registered(
            worker=worker,
            rank=rank,
            epoch=self._entropy(12).hex(),
            engine_life=engine_life,
            public_key=signer.public_key,
            partition=pinned_partition(worker, rank, max(1, registry.partitions)),
            endpoint=endpoint,
            model=model,
            pod=self._place.pod,
            container=self._place.container,
            container_id=self._place.container_id,
        )
        read_upto = registry.next_offset
        try:
            appended = await guarded(self._writer.append(body))
        except GrantError as error:
            raise RegistrationError(worker, rank, str(error)) from error
        if appended.offset < read_upto:
            raise LogTruncatedError(
                f"kv.control took a record at {appended.offset}, {read_upto} were read of it before"
            )
        if not await self._follower.wait_for(appended.offset, self._timeout_s):
            raise RegistrationError(worker, rank, "kv.control could not be followed in time")
        stream = StreamKey(worker, rank, body.epoch)
        standing = registry.registration_of(stream)
        if standing is None or standing.epoch_no != appended.offset:
            raise RegistrationError(worker, rank, _ignored(registry))
        return Epoch(stream, appended.offset, appended.record_sha256, body.partition, engine_life, signer)


def _ignored(registry: Registry) -> str:
    """Why records were ignored so far; the newest reason isn't kept apart."""
    return ", ".join(sorted(registry.ignored)) or "unknown"
