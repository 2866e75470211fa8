"""A server that speaks Kubernetes' pod API: pages, watches, bookmarks, 410 Gone, Status objects, bearer tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Pod = dict[str, Any]


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    """A `meta/v1` Status."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def pod(
    name: str,
    uid: str,
    *,
    container_id: str = "",
    phase: str = "Running",
    labels: dict[str, str] | None = None,
) -> Pod:
    """A pod with one running container, `engine`."""
    return {
        "metadata": {"name": name, "namespace": "llm", "uid": uid, "labels": labels or {}},
        "spec": {"nodeName": "node-1", "containers": [{"name": "engine"}]},
        "status": {
            "phase": phase,
            "containerStatuses": [
                {
                    "name": "engine",
                    "restartCount": 0,
                    "containerID": container_id,
                    "state": {"running": {"startedAt": "2026-11-30T08:00:00Z"}},
                    "lastState": {},
                }
            ],
        },
    }


def terminated(container_id: str, code: int = 137, reason: str = "OOMKilled") -> dict[str, Any]:
    return {
        "terminated": {
            "exitCode": code,
            "reason": reason,
            "finishedAt": "2026-11-30T09:00:00Z",
            "containerID": container_id,
        }
    }


class FakeCluster:
    """The store and its server. `oldest` is the oldest resource version that a watch may begin at."""

    def __init__(self, *, token: str = "secret") -> None:
        self.token = token
        self.pods: dict[str, Pod] = {}
        self.version = 100
        self.oldest = 0
        self.lists = self.watches = 0
        self.url = ""
        self._log: list[tuple[int, str, Pod]] = []
        self._moved = asyncio.Condition()
        self._closing = False

    async def put(self, one: Pod) -> None:
        uid = one["metadata"]["uid"]
        await self._tell("MODIFIED" if uid in self.pods else "ADDED", one)
        self.pods[uid] = deepcopy(one)

    async def delete(self, uid: str) -> None:
        await self._tell("DELETED", self.pods.pop(uid))

    async def bookmark(self) -> None:
        await self._tell("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": {}})

    async def compact(self) -> None:
        """What lies before now can no longer be watched; open watches are told so."""
        self.version += 1
        self.oldest = self.version
        async with self._moved:
            self._moved.notify_all()

    async def _tell(self, kind: str, one: Pod) -> None:
        self.version += 1
        told = deepcopy(one)
        told["metadata"]["resourceVersion"] = str(self.version)
        one["metadata"]["resourceVersion"] = str(self.version)
        self._log.append((self.version, kind, told))
        async with self._moved:
            self._moved.notify_all()

    async def _pods(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return JSONResponse(status(401, "Unauthorized", "Unauthorized"), 401)
        selector = request.query_params.get("labelSelector", "")
        if request.query_params.get("watch"):
            return self._watch(int(request.query_params["resourceVersion"]))
        self.lists += 1
        found = [one for one in self.pods.values() if _matches(one, selector)]
        first = int(request.query_params.get("continue", "0"))
        limit = min(2, int(request.query_params["limit"]))
        metadata: dict[str, Any] = {"resourceVersion": str(self.version)}
        if first + limit < len(found):
            metadata["continue"] = str(first + limit)
        document = {
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": metadata,
            "items": found[first : first + limit],
        }
        return JSONResponse(document)

    def _watch(self, version: int) -> Response:
        self.watches += 1
        if version < self.oldest:
            return JSONResponse(status(410, "Expired", "too old resource version"), 410)

        async def lines() -> AsyncIterator[bytes]:
            at = version
            while not self._closing:
                if at < self.oldest:
                    gone = {"type": "ERROR", "object": status(410, "Expired", "too old resource version")}
                    yield json.dumps(gone).encode() + b"\n"
                    return
                due = [entry for entry in self._log if entry[0] > at]
                for newer, kind, one in due:
                    at = newer
                    yield json.dumps({"type": kind, "object": one}).encode() + b"\n"
                if not due:
                    async with self._moved:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(0.2):
                                await self._moved.wait()

        return StreamingResponse(lines(), media_type="application/json")

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeCluster]:
        routes = [
            Route("/api/v1/pods", self._pods),
            Route("/api/v1/namespaces/llm/pods", self._pods),
        ]
        server = uvicorn.Server(
            uvicorn.Config(Starlette(routes=routes), port=0, log_level="critical", lifespan="off")
        )
        task = asyncio.create_task(server.serve())
        try:
            while not server.started:
                await asyncio.sleep(0.01)
            self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            yield self
        finally:
            self._closing = True
            server.should_exit = server.force_exit = True
            await asyncio.gather(task, return_exceptions=True)


def _matches(one: Pod, selector: str) -> bool:
    labels = one["metadata"].get("labels") or {}
    wanted = [part.partition("=") for part in selector.split(",") if part]
    return all(labels.get(key) == value for key, _, value in wanted)
