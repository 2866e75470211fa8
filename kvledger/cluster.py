"""Kubernetes' API, as far as pods are read from it: list in pages, watch with bookmarks, bearer token, cluster CA.

The shapes are those of the API reference (core/v1 Pod, meta/v1 WatchEvent and Status).
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx

from events.errors import KvledgerError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE = 500
WATCH_S = 240
TIMEOUT_S = 15.0
GONE = 410
MOST_PODS = 200_000

Pod = Mapping[str, Any]
EventType = Literal["ADDED", "MODIFIED", "DELETED"]


class ClusterError(KvledgerError):
    """The API can't be used like this; the message says why. Worth another try unless `final`."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class ExpiredError(ClusterError):
    """The resource version is too old (410 Gone): list again."""

    def __init__(self) -> None:
        super().__init__("the watch's resource version is gone")


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where the API is and who asks. The token's file is read for every request: kubelet renews it."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    namespace: str | None = None
    selector: str | None = None

    @classmethod
    def inside(cls, environment: Mapping[str, str] = os.environ) -> ClusterAddress | None:
        """The address of the cluster that this process runs in; None outside of one."""
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            return None
        shown = f"[{host}]" if ":" in host else host
        return cls(f"https://{shown}:{port}", ACCOUNT / "token", ACCOUNT / "ca.crt")


class Cluster:
    """One namespace's pods, or all. Made by `connected`."""

    def __init__(self, address: ClusterAddress, http: httpx.AsyncClient) -> None:
        self._address = address
        self._http = http
        where = f"/namespaces/{address.namespace}" if address.namespace else ""
        self._path = f"/api/v1{where}/pods"

    async def list(self) -> tuple[list[Pod], str]:
        """Every pod as the API server's store has them now, and the resource version to watch from. Raises
        ClusterError."""
        found: list[Pod] = []
        asked: dict[str, str] = {"limit": str(PAGE)}
        while True:
            try:
                answer = await self._http.get(self._path, params=self._query(asked), headers=self._headers())
            except httpx.HTTPError as error:
                raise ClusterError(f"{self._address.url}: {type(error).__name__}") from error
            _raise_for(answer.status_code, answer.text)
            try:
                page = answer.json()
                meta = page["metadata"]
                found += _pods(page.get("items") or [])
                version, more = str(meta["resourceVersion"]), meta.get("continue")
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise ClusterError(f"{self._address.url} sends no pod list", final=True) from error
            if not more:
                return found, version
            if len(found) > MOST_PODS or more == asked.get("continue"):
                raise ClusterError(f"{self._address.url} sends a pod list without an end", final=True)
            asked["continue"] = str(more)

    async def watch(self, version: str) -> AsyncIterator[tuple[EventType | None, Pod, str]]:
        """What changes behind that resource version: (type, pod, new version); a bookmark has no type. Ends when the
        server ends the watch: watch again from the newest version. Raises ExpiredError, ClusterError."""
        asked = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        timeout = httpx.Timeout(TIMEOUT_S, read=WATCH_S + TIMEOUT_S)
        try:
            async with self._http.stream(
                "GET", self._path, params=self._query(asked), headers=self._headers(), timeout=timeout
            ) as answer:
                if answer.status_code != httpx.codes.OK:
                    _raise_for(answer.status_code, (await answer.aread()).decode(errors="replace"))
                async for line in answer.aiter_lines():
                    if line.strip():
                        yield _event(line)
        except httpx.HTTPError as error:
            raise ClusterError(f"{self._address.url}: {type(error).__name__}") from error

    def _query(self, asked: Mapping[str, str]) -> dict[str, str]:
        selector = self._address.selector
        return {**asked, "labelSelector": selector} if selector else dict(asked)

    def _headers(self) -> dict[str, str]:
        path = self._address.token_file
        if path is None:
            return {}
        try:
            token = path.read_text().strip()
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"the token file {path} can't be read ({type(error).__name__})", final=True
            ) from error
        if not token or not token.isascii() or not token.isprintable():
            raise ClusterError(f"the token file {path} holds no token", final=True)
        return {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def connected(address: ClusterAddress) -> AsyncIterator[Cluster]:
    """Raises ClusterError if the CA's file can't be used."""
    try:
        context = ssl.create_default_context(cafile=str(address.ca_file) if address.ca_file else None)
    except (OSError, ssl.SSLError) as error:
        raise ClusterError(f"{address.ca_file} is no CA file ({type(error).__name__})", final=True) from error
    async with httpx.AsyncClient(base_url=address.url, verify=context, timeout=TIMEOUT_S) as http:
        yield Cluster(address, http)


def _pods(items: Any) -> list[Pod]:
    """The items, if they are objects. Raises TypeError."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise TypeError("a pod is an object")
    return items


def _raise_for(status: int, text: str) -> None:
    if status == httpx.codes.OK:
        return
    if status == GONE:
        raise ExpiredError
    reason = ""
    with suppress(ValueError, AttributeError):
        reason = str(json.loads(text).get("message", ""))[:200]
    final = status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND)
    raise ClusterError(f"the cluster answers {status} {reason}".strip(), final=final)


def _event(line: str) -> tuple[EventType | None, Pod, str]:
    try:
        event = json.loads(line)
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            _raise_for(int(item.get("code", 500)), json.dumps(item))
        version = str(_pods([item])[0]["metadata"]["resourceVersion"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ClusterError("the cluster sends no watch event") from error
    if kind == "BOOKMARK":
        return None, {}, version
    return (kind if kind in ("ADDED", "MODIFIED", "DELETED") else None), item, version
