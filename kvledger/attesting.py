"""Which engine lives a cluster's pods prove to be over, and saying so under the supervisor's key.

Death is a container's terminated status: of the very start of it that was registered, or of any while the pod itself is
over for good. A pod that is gone from the API without one, a lost node or a deadline that passed prove nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from events.errors import GrantError
from events.fold.registry import Registry
from events.ids import Role
from events.kafka.connection import LogUnavailableError
from events.kafka.control import ControlTail
from events.model.control import ExitAttested
from events.signing import verify
from kvledger.cluster import Cluster, ClusterError, ExpiredError, Pod
from kvledger.control import connection, control_writer
from kvledger.settings import Settings

LOG = logging.getLogger(__name__)
ATTESTER = "kubernetes"
PRINCIPAL = "attest-kubernetes"
FINAL = ("Succeeded", "Failed")
UNKNOWN = "ContainerStatusUnknown"
"""Kubelet's word for a container that it could not find: it says nothing about the process."""
MAX_PODS = 20_000
LOOK_EVERY_S = 2.0
RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """An engine life that is proven over."""

    worker: str
    engine_life: str
    evidence: str

    @property
    def key(self) -> str:
        """One record for each life, whoever attests it and however often."""
        return hashlib.sha256(f"{self.worker}\n{self.engine_life}".encode()).hexdigest()


def uid_of(pod: Pod) -> str:
    metadata = pod.get("metadata")
    return str(metadata.get("uid", "")) if isinstance(metadata, Mapping) else ""


def end_of(pod: Pod, container: str | None, container_id: str | None) -> str | None:
    """The evidence that an engine in this pod is over; None if there is none.

    With `container_id`, a terminated status of that start of the container, now or before its restart. Without,
    every status of the `container` (or of all) must be terminated in a pod that never starts one again: its phase
    is final, or it is being deleted. A pod that isn't of the API's form proves nothing.
    """
    try:
        return _end_of(pod, container, container_id)
    except (AttributeError, TypeError, KeyError):
        LOG.warning("pod %s is not of the API's form: it proves nothing", uid_of(pod)[:64])
        return None


def _end_of(pod: Pod, container: str | None, container_id: str | None) -> str | None:
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    statuses = [
        one
        for one in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
        if container is None or one.get("name") == container
    ]
    if container_id is not None:
        for one in statuses:
            for when in ("state", "lastState"):
                ended = (one.get(when) or {}).get("terminated")
                if _is_end(ended) and ended.get("containerID") == container_id:
                    return _evidence(pod, one, ended)
        return None
    if status.get("phase") not in FINAL and not metadata.get("deletionTimestamp"):
        return None
    if container is None:
        statuses = list(status.get("containerStatuses") or [])
    ends = [(one.get("state") or {}).get("terminated") for one in statuses]
    proven = [ended for ended in ends if _is_end(ended)]
    if not proven or len(proven) < len(statuses):
        return None
    return _evidence(pod, statuses[0], proven[0])


def _is_end(ended: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(ended, Mapping) and "exitCode" in ended and ended.get("reason") != UNKNOWN


def _evidence(pod: Pod, status: Mapping[str, Any], ended: Mapping[str, Any]) -> str:
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    return (
        f"pod {metadata.get('namespace')}/{metadata.get('name')} uid {uid_of(pod)} on node {spec.get('nodeName')}: "
        f"container {status.get('name')} {ended.get('containerID')} terminated, exit code {ended.get('exitCode')}, "
        f"{ended.get('reason')}, at {ended.get('finishedAt')}"
    )[:2_000]


def ended_lives(registry: Registry, pods: Mapping[str, Pod]) -> list[EngineEnd]:
    """Lives that the pods (by UID) prove over and nobody has attested yet. A life whose epochs name several places is
    passed over: somebody's word is wrong, and nobody knows whose."""
    places: dict[tuple[str, str], set[tuple[str | None, str | None, str | None]]] = {}
    for registration in registry.registrations.values():
        body = registration.body
        life = (body.worker, body.engine_life)
        if life not in registry.exits:
            places.setdefault(life, set()).add((body.pod, body.container, body.container_id))
    found: list[EngineEnd] = []
    for (worker, engine_life), named in places.items():
        if len(named) != 1:
            continue
        ((uid, container, container_id),) = named
        pod = pods.get(uid) if uid is not None else None
        evidence = end_of(pod, container, container_id) if pod is not None else None
        if evidence is not None:
            found.append(EngineEnd(worker, engine_life, evidence))
    return found


class PodBook:
    """Pods by UID as they were seen last, also those that the API no longer has; bounded, oldest first out."""

    def __init__(self) -> None:
        self.pods: OrderedDict[str, Pod] = OrderedDict()

    def see(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            uid = uid_of(pod)
            if uid:
                self.pods[uid] = pod
                self.pods.move_to_end(uid)
        while len(self.pods) > MAX_PODS:
            self.pods.popitem(last=False)


class Attester:
    """Follows pods and the registry, and attests what ends. Any number may run: one record counts for each life."""

    def __init__(
        self, settings: Settings, cluster: Cluster, *, told: Callable[[EngineEnd, int], None]
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._told = told
        self._book = PodBook()
        self._left: set[str] = set()
        self._tail = ControlTail(connection(settings), Registry(verify), monotonic_ns=time.monotonic_ns)

    async def once(self) -> int:
        """Lists the pods and attests what they prove; how many lives. Raises ClusterError, LogUnavailableError."""
        pods, _ = await self._cluster.list()
        self._book.see(pods)
        return await self._attest()

    async def run(self) -> None:
        """Until cancelled; what is away is tried again. Raises ClusterError if the cluster refuses for good."""
        follower = asyncio.create_task(self._follow())
        try:
            while True:
                await asyncio.wait({follower}, timeout=LOOK_EVERY_S)
                if follower.done():
                    follower.result()
                try:
                    await self._attest()
                except LogUnavailableError as error:
                    LOG.warning("the log is away: %s", error)
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)

    async def stop(self) -> None:
        """Idempotent."""
        await self._tail.stop()

    async def _follow(self) -> None:
        version: str | None = None
        while True:
            try:
                if version is None:
                    pods, version = await self._cluster.list()
                    self._book.see(pods)
                async for kind, pod, newer in self._cluster.watch(version):
                    version = newer
                    if kind is None:
                        continue
                    self._book.see([pod])
                    if kind == "DELETED" and end_of(pod, None, None) is None:
                        LOG.warning(
                            "pod %s is gone without a terminated status: that is no death", uid_of(pod)
                        )
            except ExpiredError:
                version = None
            except ClusterError as error:
                if error.final:
                    raise
                LOG.warning("%s", error)
                version = None
                await asyncio.sleep(RETRY_S)

    async def _attest(self) -> int:
        await self._tail.catch_up()
        ends = ended_lives(self._tail.registry, self._book.pods)
        if not ends:
            return 0
        written = 0
        async with control_writer(self._settings, self._tail.registry, Role.SUPERVISOR) as writer:
            for end in ends:
                body = ExitAttested(
                    worker=end.worker, engine_life=end.engine_life, attester=ATTESTER, evidence=end.evidence
                )
                try:
                    done = await writer.append(body, idempotency_key=end.key, key_scope=PRINCIPAL)
                except GrantError as error:
                    self._leave(end, error)
                    continue
                written += 1
                self._told(end, done.offset)
        await self._tail.catch_up()
        return written

    def _leave(self, end: EngineEnd, error: GrantError) -> None:
        if end.key not in self._left:
            self._left.add(end.key)
            LOG.warning("the end of %s is not attested: %s", end.worker, error)
