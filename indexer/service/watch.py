"""`GET /v1/watch`: the state of the fleet as server-sent events.

Each new connection is told the whole present state, then what changes. What is computed is shared by all
watchers and happens only while there are any.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from events.ids import Basis, ExcludeReason, StreamKey
from indexer.service.body import DisconnectedError, Receive, Scope, Send, fail, header
from indexer.service.connection import ABORT
from indexer.service.credential import CallerRole, Principal
from router_client.problem import ProblemKind
from router_client.query import Query
from router_client.standing import Standing, survey
from router_client.view import LocalView

LOG = logging.getLogger(__name__)
EVERY_S = 0.25
FIGURES_EVERY_S = 1.0
KEEP_ALIVE_S = 10.0
SEND_TIMEOUT_S = 10.0
MAX_BUFFERED = 2_000
MAX_BUFFERED_BYTES = 512 << 10
CHUNK = 200
PATIENCE_S = 0.5
"""How long the changes of one survey wait in all, between chunks, for readers to take what they were told."""
NOT_FOR_TENANTS = frozenset({"canary", "position"})
PRIVATE = frozenset({"fault", "endpoint", "epoch"})
IDLE_SHARE = 20
"""A survey that took t is followed by a pause of at least this many t."""
ANY = Query("", "", None, (), None, None, basis=Basis.PUBLISHED)
Document = dict[str, Any]


@dataclass(slots=True, eq=False)
class Watcher:
    """One connection. Frames wait here while it is slow, within a bound."""

    fleet: bool
    frames: deque[bytes] = field(default_factory=deque)
    size: int = 0
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    over: str = ""

    @property
    def behind(self) -> bool:
        """Whether so much waits that the next chunk may be too much."""
        return 2 * len(self.frames) > MAX_BUFFERED or 2 * self.size > MAX_BUFFERED_BYTES

    def offer(self, frame: bytes) -> bool:
        """False if there is no room: then the watcher is over, and what waited is forgotten."""
        if self.over:
            return True
        if len(self.frames) >= MAX_BUFFERED or self.size + len(frame) > MAX_BUFFERED_BYTES:
            self.end("slow")
            return False
        self.frames.append(frame)
        self.size += len(frame)
        self.woken.set()
        return True

    def end(self, reason: str) -> None:
        """No frame follows; the first reason counts."""
        if not self.over:
            self.over = reason
            self.frames.clear()
            self.size = 0
            self.woken.set()

    def take(self) -> bytes:
        """All that waits."""
        found = b"".join(self.frames)
        self.frames.clear()
        self.size = 0
        self.woken.clear()
        return found


@dataclass(frozen=True, slots=True)
class Change:
    """Something to tell all watchers; `key` where it is of a stream."""

    name: str
    document: Document
    key: StreamKey | None = None


class WatchHub:
    """One replica's watchers. `canary` gives the canary's figures, None while there is none."""

    def __init__(
        self,
        view: LocalView,
        *,
        monotonic_ns: Callable[[], int],
        canary: Callable[[], Document | None] = lambda: None,
        max_watchers: int = 64,
    ) -> None:
        self._view = view
        self._monotonic_ns = monotonic_ns
        self._canary = canary
        self._max_watchers = max_watchers
        self._boot = secrets.token_hex(4)
        self._number = 0
        self._watchers: set[Watcher] = set()
        self._told: dict[StreamKey, Document] = {}
        self._figures: dict[str, Document] = {}
        self._figures_ns = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = ""
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._watchers)

    def close(self, reason: str) -> None:
        """Every watcher is told and ends; later ones are refused. Idempotent."""
        self._closed = self._closed or reason
        for watcher in self._watchers:
            watcher.end(reason)

    async def serve(self, scope: Scope, receive: Receive, send: Send, principal: Principal) -> None:
        """Until the caller goes, is too slow, or the service ends. Raises ProblemError where there is no
        room."""
        if self._closed or len(self._watchers) >= self._max_watchers:
            raise fail(ProblemKind.TOO_BUSY, f"{len(self._watchers)} watchers", retry_after_ms=1_000)
        watcher = Watcher(principal.role is not CallerRole.TENANT)
        if not self._watchers:
            self._number += len(self._survey())
        self._watchers.add(watcher)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._ended)
        leaving = asyncio.create_task(_gone(receive))
        try:
            await self._stream(watcher, scope, send, leaving)
        except TimeoutError:
            # It doesn't read at all: nothing that it is told would arrive.
            self.dropped += not watcher.over
            abort = (scope.get("extensions") or {}).get(ABORT)
            if abort is not None:
                abort()
        except DisconnectedError:
            return
        finally:
            self._watchers.discard(watcher)
            leaving.cancel()

    async def _stream(self, watcher: Watcher, scope: Scope, send: Send, leaving: asyncio.Task[None]) -> None:
        async def write(body: bytes, *, more: bool = True) -> None:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": body, "more_body": more})
            if leaving.done():
                raise DisconnectedError("the caller went away")

        headers = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"))
        await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
        told = list(self._told.values())
        await write(self._hello(header(scope, b"last-event-id"), len(told)))
        for at in range(0, len(told), CHUNK):
            await write(b"".join(self._frame("stream", d, watcher.fleet) for d in told[at : at + CHUNK]))
        figures = [self._frame(name, d, watcher.fleet) for name, d in self._figures.items()]
        await write(b"".join(figures) + self._frame("current", {"streams": len(told)}))
        while True:
            if not watcher.over and not watcher.frames:
                await _first(watcher.woken, leaving, KEEP_ALIVE_S)
            body = watcher.take()
            if watcher.over:
                await write(self._frame("end", {"reason": watcher.over}), more=False)
                return
            await write(body or b": keep-alive\n\n")

    def _hello(self, last: str | None, streams: int) -> bytes:
        boot, _, number = (last or "").partition(":")
        known = boot == self._boot and number.isdigit() and int(number) <= self._number
        document = {
            "log": self._view.registry.log,
            "reader": self._view.reader,
            "streams": streams,
            "missed": self._number - int(number) if known else None,
            "keep_alive_s": KEEP_ALIVE_S,
        }
        return self._frame("hello", document)

    def _frame(self, name: str, document: Mapping[str, Any], fleet: bool = True) -> bytes:
        if not fleet and name in NOT_FOR_TENANTS:
            return b""
        shown = document if fleet else {k: v for k, v in document.items() if k not in PRIVATE}
        text = json.dumps(shown, separators=(",", ":"))
        return f"id: {self._boot}:{self._number}\nevent: {name}\ndata: {text}\n\n".encode()

    async def _run(self) -> None:
        while self._watchers and not self._closed:
            begun_ns = self._monotonic_ns()
            changes = self._survey()
            took_s = (self._monotonic_ns() - begun_ns) / 1e9
            await self._tell_all(changes)
            await asyncio.sleep(max(EVERY_S, took_s * IDLE_SHARE))

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Watchers that nobody tells anything must not be kept alive."""
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("the watch failed: %s", type(error).__name__, extra={"action": "watch_failed"})
            for watcher in self._watchers:
                watcher.end("failed")

    async def _tell_all(self, changes: list[Change]) -> None:
        """In chunks, so that readers who read keep up however much of the fleet changed at once. What is no
        longer so when its turn comes isn't told any more."""
        left_s = PATIENCE_S
        for at in range(0, len(changes), CHUNK):
            for change in changes[at : at + CHUNK]:
                if change.key is None or change.document is self._told.get(change.key, change.document):
                    self._tell(change)
            await asyncio.sleep(0)
            while left_s > 0 and any(watcher.behind for watcher in self._watchers):
                await asyncio.sleep(0.01)
                left_s -= 0.01

    def _survey(self) -> list[Change]:
        """Brings up to date what new watchers are told; returns what the others are to be told."""
        changes: list[Change] = []
        view, now_ns = self._view, self._monotonic_ns()
        eligible, others = survey(view, ANY, now_ns)
        found = {standing.key: _stream(view, standing, now_ns) for standing in eligible}
        for other in others:
            if other.reason is ExcludeReason.FENCED and other.dp_rank is not None:
                key = view.registry.current[other.worker, other.dp_rank]
                found[key] = _document(key, "fenced", None, "")
        for key, document in found.items():
            before = self._told.get(key)
            if before is None or (before["state"], before["fault"]) != (document["state"], document["fault"]):
                changes.append(Change("stream", document, key))
        for key in self._told.keys() - found.keys():
            superseded = key in view.registry.registrations and view.registry.superseded(key)
            gone = _document(key, "superseded" if superseded else "closed", None, "")
            changes.append(Change("stream", gone, key))
        self._told = found
        included = [d for d in found.values() if d["state"] == "live" and d["staleness_ms"] is not None]
        coverage: Document = {
            "included": len(included),
            "eligible": len(eligible),
            "worst_staleness_ms": max((d["staleness_ms"] for d in included), default=None),
            "floor_ms": view.floor_ms(),
            "caught_up": view.caught_up,
        }
        before = self._figures.get("coverage", {})
        moved = any(before.get(name) != coverage[name] for name in ("included", "eligible", "caught_up"))
        if moved or now_ns - self._figures_ns >= FIGURES_EVERY_S * 1e9:
            self._figures_ns = now_ns
            position = {"control": view.registry.next_offset, "token": view.token()}
            canary = self._canary()
            figures = {"coverage": coverage, "position": position}
            if canary is not None:
                figures["canary"] = canary
            for name, document in figures.items():
                if document != self._figures.get(name):
                    changes.append(Change(name, document))
            self._figures = figures
        return changes

    def _tell(self, change: Change) -> None:
        self._number += 1
        frames = {
            fleet: self._frame(change.name, change.document, fleet)
            for fleet in {w.fleet for w in self._watchers}
        }
        for watcher in self._watchers:
            frame = frames[watcher.fleet]
            if frame and not watcher.offer(frame):
                self.dropped += 1


def _stream(view: LocalView, standing: Standing, now_ns: int) -> Document:
    stream, reason = standing.view, standing.reason
    state = "live" if reason is None else reason.value
    if reason in (None, ExcludeReason.UNCONFIRMED) and (
        stream is None or stream.silent(now_ns, view.limits.silent_after_ns)
    ):
        state = "silent"
    return _document(standing.key, state, standing.staleness_ms, stream.state.fault if stream else "")


def _document(key: StreamKey, state: str, staleness_ms: float | None, fault: str) -> Document:
    return {
        "worker": key.worker,
        "dp_rank": key.rank,
        "epoch": key.epoch,
        "state": state,
        "staleness_ms": staleness_ms,
        "fault": fault or None,
    }


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _first(event: asyncio.Event, leaving: asyncio.Task[None], timeout_s: float) -> None:
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((waiting, leaving), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
