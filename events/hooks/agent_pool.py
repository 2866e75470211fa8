"""The agent's hands on the engine's block pool; all of it on the engine's own thread, between two steps.

Written against vLLM's `Scheduler`, `KVCacheManager` and `BlockPool` (0.32), reached by name only, so this module
imports nothing of the engine. Loaded inside the engine's process: standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from events.hooks.agent_wire import NOBODY, Group

MARK = "kvledger_mark"
BARRED = "kvledger_barred"
INT_HASH_BYTES = 8
GROUP_BYTES = 4
"""A key of the pool's map is the digest and the group's number, big endian."""
LOOK_EVERY = 16
RESOLVE_TURN = 512


@dataclass(slots=True)
class Standing:
    """One moment of the engine, see `agent_wire.Word`."""

    seq: int
    told: bool
    oldest: int
    running: int
    waiting: int
    used: float


@dataclass(slots=True)
class Contents:
    """The pool's map at publication `seq`: keys, what each leads to, and how many copies that was."""

    seq: int
    told: bool
    keys: list[bytes]
    values: list[Any]
    counts: list[int]


@dataclass(slots=True)
class Removal:
    """One order on its way: `at` counts keys, then requests looked at."""

    keys: list[bytes]
    request: int
    removed: int = 0
    referenced: int = 0
    at: int = 0
    wanted: set[bytes] | None = None
    requests: list[Any] = field(default_factory=list)


class EnginePool:
    """`published` counts what the engine has given its publisher, so the newest sequence number is one less.
    Errors of the engine's own objects come out as they are: the caller ends the agent, never the engine."""

    def __init__(
        self,
        scheduler: Any,
        *,
        make_batch: Callable[[float, list[Any]], Any],
        int_hashes: bool,
        wall_s: Callable[[], float] = lambda: time.time_ns() / 1e9,
    ) -> None:
        self.published = 0
        self.mark = NOBODY
        self.log = ""
        self._from = -GROUP_BYTES - INT_HASH_BYTES if int_hashes else 0
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._publisher = scheduler.kv_event_publisher
        self._pools = _pools_of(self._manager)
        # A pool of another medium is another tier, which the engine's events tell apart.
        medium = getattr(self._pools[0], "medium", None)
        self._own_tier = [pool for pool in self._pools if getattr(pool, "medium", None) == medium]
        self._make_batch = make_batch
        self._wall_s = wall_s

    @property
    def pools(self) -> Sequence[Any]:
        return self._pools

    @property
    def blocks(self) -> int:
        """Physical blocks of the engine's own tier that can hold something; one of each pool is its null block."""
        return sum(pool.num_gpu_blocks - 1 for pool in self._own_tier)

    def groups(self) -> list[Group]:
        """The engine's attention groups as its events call them."""
        kinds = self._manager.kv_cache_event_metadata
        managers = self._manager.coordinator.single_type_managers
        return [
            Group(index, kind, manager.block_size, window)
            for index, ((kind, window), manager) in enumerate(zip(kinds, managers, strict=True))
        ]

    # --- admissions ---------------------------------------------------------------------------------

    def admit(self, request: Any) -> None:
        """A request was given to the scheduler: it carries the newest offset told so far. A session that goes
        on keeps the older one."""
        if getattr(request, MARK, None) is None:
            setattr(request, MARK, self.mark)

    def oldest(self) -> int:
        """The least mark that a store can still come with."""
        requests = self._scheduler.requests.values()
        return min((_mark(request) for request in requests), default=self.mark)

    def landed(self, request: Any, blocks: Iterable[Any]) -> None:
        """Blocks that a request has just cached. A barred one carries on what a deletion has removed: its blocks
        stay its own and leave the cache before anybody could hit them."""
        if getattr(request, BARRED, False):
            self._evict(blocks)

    # --- questions ----------------------------------------------------------------------------------

    def note(self, mark: int, log: str) -> None:
        """What is admitted from now on is so under this offset. One of another log, or a lower one (a log that was
        cut, a second bridge that lags), makes what runs no newer than that."""
        if log != self.log or mark < self.mark:
            most = mark if log == self.log else NOBODY
            for request in self._scheduler.requests.values():
                setattr(request, MARK, min(_mark(request), most))
        self.mark, self.log = mark, log

    def stand(self, mark: int = NOBODY, log: str = "") -> Standing:
        """Publishes what is mutated and untold, as the end of a step would, and says how things are."""
        if mark != NOBODY:
            self.note(mark, log)
        told = self.flush()
        running, waiting = self._scheduler.get_request_counts()
        oldest = min(self.mark, self.oldest())
        return Standing(self.published - 1, told, oldest, running, waiting, float(self._manager.usage))

    def flush(self) -> bool:
        """Gives untold mutations to the engine's own publisher; False if that would have to wait for room."""
        if not any(pool.kv_event_queue for pool in self._pools):
            return True
        queue = getattr(self._publisher, "_event_queue", None)
        if queue is not None and queue.full():
            return False
        events = self._manager.take_events()
        if events:
            try:
                self._publisher.publish(self._make_batch(self._wall_s(), events))
            except Exception:
                # The engine's own next step tells it then.
                self._pools[0].kv_event_queue = events + self._pools[0].kv_event_queue
                raise
        return not any(pool.kv_event_queue for pool in self._pools)

    def contents(self) -> Contents:
        """The whole map at this moment; `rows` makes something of it, on any thread."""
        told = self.flush()
        keys: list[bytes] = []
        values: list[Any] = []
        for pool in self._own_tier:
            cache = pool.cached_block_hash_to_block._cache
            keys.extend(cache)
            values.extend(cache.values())
        counts = [len(value) if type(value) is dict else 1 for value in values]
        return Contents(self.published - 1, told, keys, values, counts)

    def rows(self, contents: Contents) -> Iterator[tuple[int, bytes, int, int]]:
        """(group, hash as on the event socket, copies, copies referenced now)."""
        for key, value, count in zip(contents.keys, contents.values, contents.counts, strict=True):
            blocks = list(value.values()) if type(value) is dict else (value,)
            referenced = sum(block.ref_cnt > 0 for block in blocks)
            group = int.from_bytes(key[-GROUP_BYTES:], "big")
            yield group, self._wire_hash(key), count, referenced

    # --- removals -----------------------------------------------------------------------------------

    def resolve(self, hashes: Sequence[bytes], turn: Callable[[], None]) -> list[bytes]:
        """Keys of the map that these hashes stand for, all groups included; on the agent's thread, with a
        `turn` for the engine's every few microseconds. What is stored meanwhile is the next order's."""
        wanted = frozenset(hashes)
        found: list[bytes] = []
        for pool in self._pools:
            # One call of C: nothing can be stored meanwhile.
            keys = list(pool.cached_block_hash_to_block._cache)
            for start in range(0, len(keys), RESOLVE_TURN):
                part = keys[start : start + RESOLVE_TURN]
                found += [key for key in part if key[self._from : -GROUP_BYTES] in wanted]
                turn()
        return found

    def remove(self, order: Removal, until: Callable[[], bool]) -> bool:
        """Goes on with an order until it is done (True) or `until` says that others have a right to the thread.

        Every copy of every key leaves the cache, referenced or not, so nobody can hit it any more. Then the
        requests that hold such a block, or were admitted before the order and compute the same, are barred from
        landing any of it again, and count as admitted before the order until they end.
        """
        while order.wanted is None:
            if order.at >= len(order.keys):
                order.wanted = {key[:-GROUP_BYTES] for key in order.keys}
                order.requests = list(self._scheduler.requests.values())
                order.at = 0
                break
            key = order.keys[order.at]
            order.at += 1
            for pool in self._pools:
                value = pool.cached_block_hash_to_block._cache.get(key)
                if value is not None:
                    blocks = list(value.values()) if type(value) is dict else [value]
                    order.removed += len(blocks)
                    order.referenced += sum(block.ref_cnt > 0 for block in blocks)
                    pool.evict_blocks({block.block_id for block in blocks})
            if order.at % LOOK_EVERY == 0 and until():
                return False
        while order.wanted and order.at < len(order.requests):
            request = order.requests[order.at]
            order.at += 1
            self._bar(request, order.wanted, order.request)
            if until():
                return order.at >= len(order.requests)
        return True

    # --- inside -------------------------------------------------------------------------------------

    def _bar(self, request: Any, wanted: set[bytes], order: int) -> None:
        mark = _mark(request)
        if (mark < order or request.num_computed_tokens > 0) and not wanted.isdisjoint(request.block_hashes):
            setattr(request, BARRED, True)
            setattr(request, MARK, min(mark, order - 1))

    def _evict(self, blocks: Iterable[Any]) -> None:
        for block in blocks:
            if not block.is_null and block.block_hash is not None:
                pool = getattr(block, "pool", None) or self._pools[0]
                pool.evict_blocks({block.block_id})

    def _wire_hash(self, key: bytes) -> bytes:
        """vLLM publishes a digest's last eight bytes, or all of it."""
        return key[self._from : -GROUP_BYTES]


def _mark(request: Any) -> int:
    return int(getattr(request, MARK, NOBODY))


def _pools_of(manager: Any) -> list[Any]:
    """Each block pool once, the manager's own first."""
    pools = {id(manager.block_pool): manager.block_pool}
    for one in manager.coordinator.single_type_managers:
        pools.setdefault(id(one.block_pool), one.block_pool)
    return list(pools.values())
