"""An engine core shaped as vLLM 0.32's, for the agent to live in: a busy loop on a thread of its own, a scheduler,
a block pool with references, duplicates and groups, and a publisher with replay behind a queue.

Names and behaviour are those that the agent reaches for: `EngineCoreProc`, `Scheduler`, `KVCacheManager`,
`BlockPool`, `ZmqEventPublisher`. What it computes is nothing.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
import time
import types
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from events.hooks.agent import attach
from tests.support.block_pool import chain_hashes

SIZE = 16
WAKEUP, ADD, ABORT = object(), object(), object()
FULL, WINDOW = ("full_attention", None), ("sliding_window", 64)


class KVEventBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


@dataclass(eq=False)
class Block:
    block_id: int
    ref_cnt: int = 0
    block_hash: bytes | None = None
    is_null: bool = False


class HashToBlocks:
    """One block by itself, several in a dict, as vLLM holds them."""

    def __init__(self) -> None:
        self._cache: dict[bytes, Block | dict[int, Block]] = {}

    def get_one_block(self, key: bytes) -> Block | None:
        found = self._cache.get(key)
        return next(iter(found.values())) if isinstance(found, dict) else found

    def insert(self, key: bytes, block: Block) -> None:
        found = self._cache.get(key)
        if found is None:
            self._cache[key] = block
        elif isinstance(found, dict):
            found[block.block_id] = block
        else:
            self._cache[key] = {found.block_id: found, block.block_id: block}

    def pop(self, key: bytes, block_id: int) -> Block | None:
        found = self._cache.pop(key, None)
        if isinstance(found, dict):
            block = found.pop(block_id, None)
            if found:
                self._cache[key] = found
            return block
        if found is not None and found.block_id != block_id:
            self._cache[key] = found
            return None
        return found


class BlockPool:
    medium = "GPU"
    enable_kv_cache_events = True

    def __init__(self, blocks: int) -> None:
        self.num_gpu_blocks = blocks
        self.blocks = [Block(number) for number in range(blocks)]
        self.null_block = self.blocks[0]
        self.null_block.is_null = True
        self.free = OrderedDict.fromkeys(range(1, blocks))
        self.cached_block_hash_to_block = HashToBlocks()
        self.kv_event_queue: list[dict[str, Any]] = []

    def get_new_blocks(self, count: int) -> list[Block]:
        if count > len(self.free):
            raise ValueError(f"Cannot get {count} free blocks from the pool")
        taken = [self.blocks[self.free.popitem(last=False)[0]] for _ in range(count)]
        for block in taken:
            self._maybe_evict_cached_block(block)
            block.ref_cnt += 1
        return taken

    def touch(self, blocks: list[Block]) -> None:
        for block in blocks:
            self.free.pop(block.block_id, None)
            block.ref_cnt += 1

    def free_blocks(self, blocks: list[Block]) -> None:
        for block in blocks:
            block.ref_cnt -= 1
            if not block.ref_cnt:
                self.free[block.block_id] = None
                if block.block_hash is None:
                    self.free.move_to_end(block.block_id, last=False)

    def cache_full_blocks(
        self,
        request: Any,
        blocks: list[Block],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
    ) -> None:
        if num_cached_blocks >= num_full_blocks:
            return
        hashes = request.block_hashes
        for at in range(num_cached_blocks, num_full_blocks):
            key = hashes[at] + kv_cache_group_id.to_bytes(4, "big")
            assert blocks[at].block_hash is None
            blocks[at].block_hash = key
            self.cached_block_hash_to_block.insert(key, blocks[at])
        tokens = request.tokens[num_cached_blocks * block_size : num_full_blocks * block_size]
        extra = [
            [request.cache_salt] if request.cache_salt and at == 0 else None
            for at in range(num_cached_blocks, num_full_blocks)
        ]
        self.kv_event_queue.append(
            {
                "type": "BlockStored",
                "block_hashes": [external(one) for one in hashes[num_cached_blocks:num_full_blocks]],
                "parent_block_hash": external(hashes[num_cached_blocks - 1]) if num_cached_blocks else None,
                "token_ids": tokens,
                "block_size": block_size,
                "lora_id": None,
                "medium": self.medium,
                "lora_name": None,
                "extra_keys": extra,
                "group_idx": kv_cache_group_id,
            }
        )

    def evict_blocks(self, block_ids: set[int]) -> None:
        for block_id in block_ids:
            assert block_id < len(self.blocks)
            self._maybe_evict_cached_block(self.blocks[block_id])

    def reset_prefix_cache(self) -> bool:
        if len(self.free) != self.num_gpu_blocks - 1:
            return False
        self.cached_block_hash_to_block = HashToBlocks()
        for block in self.blocks:
            block.block_hash = None
        self.kv_event_queue.append({"type": "AllBlocksCleared"})
        return True

    def take_events(self) -> list[dict[str, Any]]:
        events, self.kv_event_queue = self.kv_event_queue, []
        return events

    def _maybe_evict_cached_block(self, block: Block) -> None:
        key, block.block_hash = block.block_hash, None
        if key is not None and self.cached_block_hash_to_block.pop(key, block.block_id) is not None:
            self.kv_event_queue.append(
                {
                    "type": "BlockRemoved",
                    "block_hashes": [external(key[:-4])],
                    "medium": self.medium,
                    "group_idx": int.from_bytes(key[-4:], "big"),
                }
            )


def external(digest: bytes) -> int:
    """A digest as vLLM publishes it by default."""
    return int.from_bytes(digest, "big") & ((1 << 64) - 1)


@dataclass(eq=False)
class Request:
    """`outputs` tokens are decoded, one a step; its blocks fill groups alike."""

    request_id: str
    tokens: list[int]
    outputs: int = 0
    cache_salt: str | None = None
    skip_reading: bool = False
    num_computed_tokens: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    blocks: list[list[Block]] = field(default_factory=list)
    cached: int = 0
    hits: int = 0

    def __post_init__(self) -> None:
        self.update_block_hashes()

    def update_block_hashes(self) -> None:
        self.block_hashes = chain_hashes(self.tokens, SIZE, salt=self.cache_salt)


class Publisher:
    """Behind a queue, on a thread of its own, replay answered between two publications."""

    def __init__(self, *, queue_size: int = 1_000) -> None:
        self._event_queue: queue.Queue[Any] = queue.Queue(queue_size)
        self._dp_rank = 0
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._replay = self._context.socket(zmq.ROUTER)
        self.endpoint = self._bind(self._pub)
        self.replay_endpoint = self._bind(self._replay)
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=10_000)
        self._seq = 0
        self._running = True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def publish(self, batch: KVEventBatch) -> None:
        if not self._running:
            raise RuntimeError("Publisher is closed")
        batch.data_parallel_rank = self._dp_rank
        self._event_queue.put(batch)

    def get_publisher_config(self) -> Any:
        return types.SimpleNamespace(endpoint=self.endpoint, replay_endpoint=self.replay_endpoint)

    def shutdown(self) -> None:
        self._running = False
        self._event_queue.put(None)
        self._thread.join(10)
        for one in (self._pub, self._replay):
            one.close(linger=0)
        self._context.term()

    def _bind(self, socket: zmq.Socket[bytes]) -> str:
        return f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"

    def _run(self) -> None:
        while self._running:
            if self._replay.poll(0):
                client, _, start = self._replay.recv_multipart()
                for seq, payload in self._buffer:
                    if seq >= int.from_bytes(start, "big"):
                        self._replay.send_multipart([client, b"", b"kv", seq.to_bytes(8, "big"), payload])
                self._replay.send_multipart([client, b"", b"", b"\xff" * 8, b""])
            try:
                batch = self._event_queue.get(timeout=0.02)
            except queue.Empty:
                continue
            if batch is not None:
                payload = msgspec.msgpack.encode(batch)
                self._pub.send_multipart([b"kv", self._seq.to_bytes(8, "big"), payload])
                self._buffer.append((self._seq, payload))
                self._seq += 1


class Manager:
    def __init__(self, pool: BlockPool, groups: int) -> None:
        self.block_pool = pool
        self.kv_cache_event_metadata = (FULL, WINDOW)[:groups]
        managers = [types.SimpleNamespace(block_pool=pool, block_size=SIZE) for _ in range(groups)]
        self.coordinator = types.SimpleNamespace(single_type_managers=managers)

    @property
    def usage(self) -> float:
        return 1 - len(self.block_pool.free) / (self.block_pool.num_gpu_blocks - 1)

    def take_events(self) -> list[dict[str, Any]]:
        events = self.block_pool.take_events()
        for event in events:
            if event["type"] == "BlockStored":
                kind, window = self.kv_cache_event_metadata[event["group_idx"]]
                event["kv_cache_spec_kind"], event["kv_cache_spec_sliding_window"] = kind, window
        return events


class Scheduler:
    def __init__(self, pool: BlockPool, publisher: Publisher, groups: int) -> None:
        self.kv_cache_manager = Manager(pool, groups)
        self.kv_event_publisher = publisher
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._groups = groups

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def has_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def finish(self, request_id: str) -> None:
        request = self.requests.pop(request_id)
        if request in self.running:
            self.running.remove(request)
        for blocks in request.blocks:
            self.kv_cache_manager.block_pool.free_blocks(blocks[::-1])

    def step(self) -> None:
        for request in list(self.running):
            if not request.outputs:
                self.finish(request.request_id)
                continue
            request.outputs -= 1
            request.tokens.append(7)
            request.update_block_hashes()
            self._fill(request)
        while self.waiting:
            self._start(self.waiting.popleft())
        events = self.kv_cache_manager.take_events()
        if events:
            self.kv_event_publisher.publish(KVEventBatch(ts=time.time(), events=events))

    def preempt(self, request: Request) -> None:
        """Its blocks are freed, and it starts again from whatever is a hit then."""
        self.running.remove(request)
        for blocks in request.blocks:
            self.kv_cache_manager.block_pool.free_blocks(blocks[::-1])
        request.blocks, request.cached, request.num_computed_tokens = [], 0, 0
        self.waiting.append(request)

    def _start(self, request: Request) -> None:
        pool = self.kv_cache_manager.block_pool
        hits = 0
        most = 0 if request.skip_reading else (len(request.tokens) - 1) // SIZE
        request.blocks = [[] for _ in range(self._groups)]
        while hits < most:
            keys = [request.block_hashes[hits] + group.to_bytes(4, "big") for group in range(self._groups)]
            found = [pool.cached_block_hash_to_block.get_one_block(key) for key in keys]
            if not all(found):
                break
            for mine, block in zip(request.blocks, found, strict=True):
                assert block is not None
                pool.touch([block])
                mine.append(block)
            hits += 1
        request.hits, request.cached = hits, hits
        self.running.append(request)
        self._fill(request)

    def _fill(self, request: Request) -> None:
        pool = self.kv_cache_manager.block_pool
        full = len(request.tokens) // SIZE
        for group, mine in enumerate(request.blocks):
            mine.extend(pool.get_new_blocks(full + 1 - len(mine)))
            pool.cache_full_blocks(request, mine, request.cached, full, SIZE, group)
        request.cached, request.num_computed_tokens = full, len(request.tokens)


class FakeCore:
    """`with FakeCore() as core: core.add(Request(…))`; everything happens on the thread of its busy loop."""

    def __init__(self, *, blocks: int = 256, groups: int = 1, queue_size: int = 1_000) -> None:
        self.input_queue: queue.Queue[Any] = queue.Queue()
        self.pool = BlockPool(blocks)
        self.publisher = Publisher(queue_size=queue_size)
        self.scheduler = Scheduler(self.pool, self.publisher, groups)
        self.step_s = 0.0
        self.steps = 0
        self.unknown = 0
        self.error: BaseException | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> FakeCore:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self.input_queue.put((WAKEUP, None))
        self._thread.join(10)
        self.publisher.shutdown()
        assert self.error is None, self.error

    def add(self, request: Request) -> Request:
        self.input_queue.put((ADD, request))
        return request

    def on_thread(self, work: Any) -> Any:
        """Has something done on the engine's thread; its result."""
        done: queue.Queue[Any] = queue.Queue()
        self.input_queue.put((ABORT, lambda: done.put(work())))
        return done.get(timeout=30)

    def has_work(self) -> bool:
        return self.scheduler.has_requests()

    def _loop(self) -> None:
        try:
            while not self._stopped:
                self._process_input_queue()
                if self.has_work():
                    self.steps += 1
                    time.sleep(self.step_s)
                    self.scheduler.step()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error

    def _process_input_queue(self) -> None:
        while not self.has_work() and not self._stopped:
            entry = self.input_queue.get()
            self._handle_client_request(*entry)
        while not self.input_queue.empty():
            entry = self.input_queue.get_nowait()
            self._handle_client_request(*entry)

    def _handle_client_request(self, kind: Any, request: Any) -> None:
        if kind is ADD:
            self.scheduler.add_request(request)
        elif kind is ABORT:
            request()
        elif kind is not WAKEUP:
            self.unknown += 1


@contextlib.contextmanager
def engine_modules() -> Iterator[None]:
    """What the agent takes from vLLM's own modules."""
    made: dict[str, Any] = {
        "vllm": {"__version__": "0.32.0"},
        "vllm.distributed.kv_events": {"KVEventBatch": KVEventBatch},
        "vllm.envs": {"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": True},
    }
    for name, members in made.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]


def main() -> None:
    """An engine in a process of its own: its addresses on the first line, then a line for each prompt that comes in
    (a JSON list of token ids), with its hits. `argv[1]` is the path of its agent's socket."""
    with engine_modules(), FakeCore() as core:
        agent = attach(core, sys.argv[1])
        print(
            json.dumps([core.publisher.endpoint, core.publisher.replay_endpoint, agent is not None]),
            flush=True,
        )
        for number, line in enumerate(sys.stdin):
            request = core.add(Request(str(number), json.loads(line)))
            while not request.num_computed_tokens or request.request_id in core.scheduler.requests:
                time.sleep(0.002)
            print(request.hits, flush=True)


if __name__ == "__main__":
    main()
