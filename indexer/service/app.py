"""The lookup service as one ASGI application: the hot path first, the control plane behind it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from events.fold.registry import Registry
from events.kafka.deadline import within
from events.kafka.subject import SubjectLog
from events.signing import verify
from indexer.service import clock
from indexer.service.access import MAX_BATCHES, AccessBook, AccessWriter
from indexer.service.beacon import BeaconWriter
from indexer.service.body import (
    BodyReader,
    DisconnectedError,
    Message,
    ProblemError,
    Receive,
    Scope,
    Send,
    fail,
    send_problem,
)
from indexer.service.canary import Canary
from indexer.service.config import ServiceConfig
from indexer.service.connection import ABORT, ConnectionCounts
from indexer.service.directive import MAX_REMEMBERED, DirectiveDesk
from indexer.service.feed import ViewFeed
from indexer.service.lookup import LookupEndpoint
from indexer.service.metric import Figures, Metrics
from indexer.service.order import OrderDesk
from indexer.service.peer import load_from_peers
from indexer.service.plane import make_plane
from indexer.service.progress import order_ages
from indexer.service.scribe import Scribe
from indexer.service.subject import SubjectDesk
from indexer.service.verdict import VerdictFeed
from indexer.service.watch import WatchHub
from indexer.store import Snapshot
from router_client.problem import ProblemKind, problem
from router_client.view import LocalView

LOG = logging.getLogger(__name__)
STOP_TIMEOUT_S = 8.0
CANARY_STOP_S = 1.0
SEND_TIMEOUT_S = 30.0


class LookupService:
    """One replica. `start` returns at once: until the log is read, answers say so. Clocks are injected for
    tests."""

    def __init__(
        self,
        config: ServiceConfig,
        *,
        monotonic_ns: Callable[[], int] = clock.monotonic_ns,
        wall_ms: Callable[[], int] = clock.wall_ms,
    ) -> None:
        self.config = config
        registry = Registry(verify)
        self.feed = ViewFeed(
            config.connection,
            registry,
            monotonic_ns=monotonic_ns,
            wall_ms=wall_ms,
            load_snapshot=config.load_snapshot,
            load_from_peers=self._from_peers if config.peers else None,
            snapshot_timeout_s=config.snapshot_timeout_s,
        )
        self.view = LocalView(
            reader=config.reader,
            registry=registry,
            keyring=config.keyring,
            control_current_ns=lambda: self.feed.control.current_ns,
            limits=config.limits,
        )
        self.feed.attach(self.view)
        self.beacons = BeaconWriter(config.connection, self.view, monotonic_ns=monotonic_ns)
        self.scribe = Scribe(config, registry, self.feed, wall_ms=wall_ms)
        self.subjects = SubjectLog(config.connection)
        self.verdicts = VerdictFeed(config.connection, registry, lambda: self.feed.state.control_read)
        self.desk = OrderDesk(
            self.view,
            self.scribe,
            self.subjects,
            monotonic_ns=monotonic_ns,
            wait_moved=self.feed.wait_moved,
        )
        self.directives = DirectiveDesk(registry, self.scribe)
        self.feed.control.listen(self.directives.folded)
        self.connections = ConnectionCounts()
        self.canary = Canary(config, self.view, self.feed, monotonic_ns=monotonic_ns, wall_ms=wall_ms)
        self.watch = WatchHub(
            self.view,
            monotonic_ns=monotonic_ns,
            canary=self.canary.report,
            max_watchers=config.max_watchers,
        )
        self.metrics = Metrics(
            self.view,
            self.feed,
            self._figures,
            self.canary,
            lambda: order_ages(self.view, self.verdicts, wall_ms()),
        )
        self.access = AccessBook()
        self._access_log = AccessWriter(config.connection, self.access, config.reader, wall_ms=wall_ms)
        self._bodies = BodyReader(config.connections, self.connections)
        self._endpoint = LookupEndpoint(
            config,
            self.view,
            self.feed,
            self.metrics,
            self._bodies,
            self.access,
            monotonic_ns=monotonic_ns,
            wall_ms=wall_ms,
        )
        self._plane = make_plane(
            config,
            self.view,
            self.feed,
            self.desk,
            self.directives,
            self.metrics,
            self._endpoint,
            self.canary,
            SubjectDesk(self.view, self.scribe, self.subjects),
            self.verdicts,
            wall_ms,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self.failed: asyncio.Event = asyncio.Event()

    async def start(self) -> None:
        """Begins to feed the view."""
        works = (self.feed.run, self.beacons.run, self.canary.run, self.verdicts.run, self._access_log.run)
        for work in works:
            task = asyncio.create_task(work())
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    async def _from_peers(self, topic: str) -> Snapshot:
        config = self.config
        return await load_from_peers(
            config.peers, self.view.registry, topic, max_copies=config.limits.max_copies
        )

    def close(self) -> None:
        """Ends what would go on for ever by itself; before connections are waited for. Idempotent."""
        self.watch.close("shutdown")

    async def stop(self) -> None:
        """Ends all tails and producers. Idempotent."""
        self.close()
        tasks, self._tasks = self._tasks, []
        await self.canary.close()
        if tasks:
            await asyncio.wait(tasks[2:3], timeout=CANARY_STOP_S)
        for task in tasks:
            task.cancel()
        # A client of a broker that is away may swallow its cancellation: it is given up.
        left = asyncio.ensure_future(self._stop_writers())
        _, hanging = await asyncio.wait([*tasks, left], timeout=STOP_TIMEOUT_S)
        for task in hanging:
            LOG.warning("%s did not end in time", task, extra={"action": "stop"})

    async def _stop_writers(self) -> None:
        await asyncio.gather(self.feed.stop(), self._access_log.stop())
        await self.scribe.stop()
        await self.subjects.stop()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A feed that dies of a fault, or of a truncated kv.control, must not leave a replica behind that goes
        on answering: from here on every request is refused, and whoever runs the service ends it."""
        if not task.cancelled() and task.exception() is not None:
            LOG.error("the feed failed", exc_info=task.exception(), extra={"action": "feed_failed"})
            self.failed.set()
            self.watch.close("failed")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, sent = scope["path"], False

        async def tracked(message: Message) -> None:
            nonlocal sent
            sent = True
            try:
                await within(send(message), SEND_TIMEOUT_S)
            except TimeoutError:
                scope.get("extensions", {}).get(ABORT, _nothing)()
                raise DisconnectedError("the caller does not read") from None

        try:
            if self.failed.is_set():
                raise fail(ProblemKind.INDEX_UNAVAILABLE, "this replica ends", retry_after_ms=1_000)
            if path in ("/v1/lookup", "/v1/lookup/batch"):
                if scope["method"] != "POST":
                    await send_problem(send, problem(ProblemKind.METHOD_NOT_ALLOWED, "POST"))
                elif path == "/v1/lookup":
                    await self._endpoint.lookup(scope, receive, send)
                else:
                    await self._endpoint.batch(scope, receive, send)
            elif path == "/v1/watch" and scope["method"] == "GET":
                await self.watch.serve(scope, receive, tracked, self._endpoint.caller(scope))
            else:
                body = await self._bodies.read(scope, receive, self.config.max_order_bytes)
                await self._plane(scope, _replay(body, receive), tracked)
        except ProblemError as error:
            self.metrics.refused(error.document)
            await send_problem(send, error.document)
        except DisconnectedError:
            return
        except Exception as error:  # noqa: BLE001 - the edge: nobody gets a traceback
            # The message might repeat what was asked: the type and place are all that is kept.
            LOG.error("%s at %s", type(error).__name__, _place(error), extra={"action": "internal_error"})
            if not sent:
                await send_problem(send, problem(ProblemKind.INTERNAL))
        finally:
            self._bodies.release(scope)

    def _figures(self) -> Figures:
        """What this process holds besides the view, and what bounds it."""
        counts, limits = self.connections, self.config.connections
        return Figures(
            held={
                "connections": (counts.open, limits.connections),
                "request_body_bytes": (counts.bodies_bytes, limits.bodies_bytes),
                "watchers": (len(self.watch), self.config.max_watchers),
                "remembered_directives": (self.directives.remembered, MAX_REMEMBERED),
                "access_batches": (self._access_log.waiting, MAX_BATCHES),
            },
            cut={
                "head_too_slow": counts.late_heads,
                "head_too_large": counts.large_heads,
                "too_many_connections": counts.refused,
                "body_too_slow": counts.late_bodies,
                "watcher_too_slow": self.watch.dropped,
            },
            forgotten={"access_lookups": self.access.lost_in_all},
        )

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _nothing() -> None:
    """A server without a way to cut a connection off."""


def _replay(body: bytes, behind: Receive) -> Receive:
    """The body that was read already, then what the server says next."""
    done = False

    async def receive() -> Message:
        nonlocal done
        if done:
            return await behind()
        done = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _place(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "?" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
