"""kvledger's agent inside a vLLM engine: entry point `vllm.general_plugins`, module `events.hooks.agent:register`.

It stands beside the engine's own publisher, replay socket and `/kv_event_sources` and changes none of them. It
confirms between two steps that everything mutated is published, inspects the pool, and takes blocks out of it on
order. An error in here ends the agent, says what to do at level ERROR, and is nowhere the engine's: every call of
the engine's own is made as before, and only what the agent adds is guarded.

Loaded inside the engine's process: standard library and msgspec only, nothing of the log, no hashing.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Callable
from typing import Any

from events.hooks import agent_wire as wire
from events.hooks.agent_pool import EnginePool
from events.hooks.agent_server import AgentServer
from events.hooks.agent_socket import SocketError
from events.hooks.engine_process import port_of, process_facts

LOG = logging.getLogger("vllm.plugins.kvledger")
"""Below vLLM's own logger, so that it is written where the engine's log goes."""
CORE_MODULE = "vllm.v1.engine.core"
WITHOUT = "the engine serves on without it; streams of its bridge say basis `published` and delete by reset"


class _Job:
    """The type of an entry in the engine's input queue that is ours."""


JOB = _Job()


def register() -> None:
    """Called by vLLM in each of its processes; only that with an engine core gets an agent, once its loop begins.
    Never raises."""
    try:
        path = os.environ.get(wire.SOCKET_VARIABLE, "")
        core = sys.modules.get(CORE_MODULE)
        if core is None:
            return
        if not path:
            LOG.warning(
                "kvledger's agent is installed and off: set %s to an absolute path and give the bridge the same "
                "path with --agent, or set VLLM_PLUGINS without `kvledger`",
                wire.SOCKET_VARIABLE,
            )
            return
        _begin_with(core.EngineCoreProc, path)
    except Exception:
        LOG.exception("kvledger's agent can't begin: %s. Report this with the version of vLLM", WITHOUT)


def _begin_with(process: Any, path: str) -> None:
    """Attaches to an engine core when its loop looks for input for the first time: everything is built then, and
    nothing was published."""
    original = process._process_input_queue
    if getattr(original, "kvledger", False):
        return

    def first(core: Any, *args: Any, **kwargs: Any) -> Any:
        process._process_input_queue = original
        attach(core, path)
        return original(core, *args, **kwargs)

    first.kvledger = True  # type: ignore[attr-defined]
    process._process_input_queue = first


def attach(core: Any, path: str) -> Agent | None:
    """An agent for this engine core, or None and an ERROR in the log. Never raises."""
    try:
        agent = Agent(core, path)
        try:
            agent.begin()
        except Exception:
            agent.stop()
            raise
        return agent
    except SocketError as error:
        LOG.error("kvledger's agent has no socket: %s. Set %s; %s", error, wire.SOCKET_VARIABLE, WITHOUT)
    except Exception:
        LOG.exception(
            "kvledger's agent doesn't know this engine: %s. It knows vLLM 0.32; use a kvledger that knows yours, "
            "or the bridge alone",
            WITHOUT,
        )
    return None


class Agent:
    """Hooks into one engine core and undoes that at the first error of its own."""

    def __init__(self, core: Any, path: str) -> None:
        self._core = core
        self._queue = core.input_queue
        scheduler = core.scheduler
        publisher = scheduler.kv_event_publisher
        config = publisher.get_publisher_config() if hasattr(publisher, "get_publisher_config") else None
        if not scheduler.kv_cache_manager.block_pool.enable_kv_cache_events:
            raise SocketError(
                'the engine publishes no cache events: start it with --kv-events-config \'{"enable_kv_cache_events":'
                ' true, "publisher": "zmq", "endpoint": …, "replay_endpoint": …}\''
            )
        self._rank = int(getattr(publisher, "_dp_rank", getattr(publisher, "_data_parallel_rank", 0)))
        self.path = wire.path_of_rank(path, self._rank)
        self.life = secrets.token_hex(8)
        self.pool = EnginePool(scheduler, make_batch=_make_batch(), int_hashes=_int_hashes())
        self._ports = (
            port_of(getattr(config, "endpoint", None)),
            port_of(getattr(config, "replay_endpoint", None)),
        )
        self._groups = self.pool.groups()
        self._undo: list[Callable[[], None]] = []
        self._server = AgentServer(
            self.path,
            self.pool,
            post=lambda work: self._queue.put_nowait((JOB, work)),
            idle=lambda: not core.has_work(),
            hello=self._hello,
            fail=self.fail,
        )

    def begin(self) -> None:
        """Wraps what is to be heard of, each in the one object only, and serves."""
        core, scheduler = self._core, self._core.scheduler
        # For good: what is in the queue when an agent ends must still be known as its own.
        core._handle_client_request = self._handling(core._handle_client_request)
        self._wrap(scheduler, "add_request", self._admitting)
        self._wrap(scheduler.kv_event_publisher, "publish", self._publishing)
        for pool in self.pool.pools:
            self._wrap(pool, "cache_full_blocks", self._caching)
        self._server.start()
        LOG.info("kvledger's agent listens at %s (rank %d)", self.path, self._rank)

    def fail(self, where: str, error: Exception) -> None:
        """Ends the agent: what it wrapped is as it was, and its socket closes, which the bridge sees."""
        LOG.error(
            "kvledger's agent ends after an error %s: %s. %s. Restart the engine to have it again, and report this",
            where,
            type(error).__name__,
            WITHOUT,
            exc_info=error,
        )
        self.stop()

    def stop(self) -> None:
        """Undoes everything; the engine isn't touched otherwise. Idempotent."""
        undo, self._undo = self._undo, []
        for one in undo:
            one()
        self._server.stop()

    # --- what is wrapped; each makes the engine's own call first or last, unguarded ------------------

    def _wrap(self, owner: Any, name: str, made: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        wrapper = made(getattr(owner, name))
        setattr(owner, name, wrapper)

        def undo() -> None:
            # Somebody may have wrapped ours meanwhile: then it stays and does nothing.
            if owner.__dict__.get(name) is wrapper:
                delattr(owner, name)

        self._undo.append(undo)

    def _handling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def handle(kind: Any, request: Any) -> Any:
            if kind is not JOB:
                return original(kind, request)
            request()
            return None

        return handle

    def _admitting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def add(request: Any, *args: Any, **kwargs: Any) -> Any:
            if self._undo:
                try:
                    self.pool.admit(request)
                except Exception as error:  # noqa: BLE001 - the engine must not see it
                    self.fail("when a request was admitted", error)
            return original(request, *args, **kwargs)

        return add

    def _publishing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def publish(events: Any) -> Any:
            answer = original(events)
            self.pool.published += 1
            return answer

        return publish

    def _caching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def cache(
            request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int, *args: Any, **kwargs: Any
        ) -> Any:
            answer = original(request, blocks, num_cached_blocks, num_full_blocks, *args, **kwargs)
            if self._undo:
                try:
                    self.pool.landed(request, blocks[num_cached_blocks:num_full_blocks])
                except Exception as error:  # noqa: BLE001 - the engine must not see it
                    self.fail("when blocks landed", error)
            return answer

        return cache

    @property
    def ended(self) -> bool:
        """Whether its socket is closed."""
        return self._server.ended

    def _hello(self, number: int) -> wire.Hello:
        pid, started, boot = process_facts()
        return wire.Hello(
            number,
            wire.PROTOCOL,
            self.life,
            pid,
            started,
            boot,
            _version(),
            self._rank,
            self.pool.blocks,
            self._groups,
            *self._ports,
        )


def _make_batch() -> Callable[[float, list[Any]], Any]:
    batch = sys.modules["vllm.distributed.kv_events"].KVEventBatch
    return lambda ts, events: batch(ts=ts, events=events)


def _int_hashes() -> bool:
    return bool(getattr(sys.modules["vllm.envs"], "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", True))


def _version() -> str:
    return str(getattr(sys.modules.get("vllm"), "__version__", ""))
