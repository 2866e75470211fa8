"""One simulated worker's block pool, behaving as vLLM's prefix cache does.

Unreferenced blocks wait in the order in which they were freed (a request's last block first) and keep their
content until they are taken for something new; taking one with content evicts it. A prompt's hits are capped
at (tokens - 1) // block size, so a block-aligned prompt sent again stores its last block a second time.
Decoding fills blocks one at a time. Nothing is announced before the step that did it ends.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from events.errors import KvledgerError
from events.hooks.engine_event import (
    NO_EXTRA_KEYS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineEvent,
    EngineHash,
    EngineTier,
    ExtraKeys,
)
from kvledger.simulate.offload import CpuTier
from kvledger.simulate.prompt import (
    DEFAULT_BLOCK_SIZE,
    OutputBlock,
    Prompt,
    PromptPlanner,
    engine_hash,
    token_maker,
)
from kvledger.simulate.residency import ClockNs, ResidencyLog
from kvledger.simulate.trace import TraceRequest

GPU_MEDIUM = "GPU"


class PromptTooLongError(KvledgerError):
    """A prompt needs more blocks than the pool has; the caller counts the request as refused and goes on."""

    def __init__(self, needed_blocks: int, capacity_blocks: int) -> None:
        super().__init__(f"the prompt needs {needed_blocks} blocks, the pool has {capacity_blocks}")
        self.needed_blocks = needed_blocks
        self.capacity_blocks = capacity_blocks


class PoolBusyError(KvledgerError):
    """Running requests hold the blocks that a new one needs; the caller finishes one and tries again."""

    def __init__(self, free_blocks: int) -> None:
        super().__init__(f"only {free_blocks} blocks are free")
        self.free_blocks = free_blocks


@dataclass(frozen=True, slots=True)
class EngineStep:
    """What one step put on the wire: `events` in order, `made_ns` the stamp of the first mutation in it."""

    life: str
    engine_seq: int
    events: tuple[EngineEvent, ...]
    made_ns: int


def _no_salt(_tenant: str) -> str | None:
    return None


@dataclass(slots=True)
class Running:
    """A request inside the engine. `blocks` are the pool's own numbers, `hit_blocks` of them were reused."""

    prompt: Prompt
    blocks: list[int]
    hit_blocks: int
    output: Iterator[OutputBlock] = field(repr=False)
    tail_key: int | None
    open_block: int | None

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens whose computation was saved."""
        return self.hit_blocks * self.prompt.block_size


@dataclass(frozen=True, slots=True)
class Removal:
    """Outcome: copies taken out, those of them that a running request still uses, hashes not found."""

    removed: tuple[EngineHash, ...]
    in_use: tuple[EngineHash, ...]
    unknown: tuple[EngineHash, ...]


class SimEngine:
    """A worker rank's pool of `capacity_blocks`; not thread-safe, never blocks.

    `clock_ns` stamps mutations in `log` when they are made; `salt_of` gives a tenant's cache salt or None;
    `birth` makes the names of its lives differ from those of an earlier run; `cpu` gets a copy of what is
    stored.
    Drive it by `admit`, `decode` and `finish`, or by `serve`; after each step call `take_step`, which is when
    an engine's events go out.
    """

    def __init__(
        self,
        worker: str,
        *,
        capacity_blocks: int,
        clock_ns: ClockNs,
        rank: int = 0,
        block_size: int = DEFAULT_BLOCK_SIZE,
        expand: bool = False,
        salt_of: Callable[[str], str | None] = _no_salt,
        log: ResidencyLog | None = None,
        slots: int = 1,
        birth: str = "",
        cpu: CpuTier | None = None,
    ) -> None:
        if capacity_blocks < 1 or slots < 1:
            raise ValueError("an engine has at least one block and one slot")
        self.worker = worker
        self.rank = rank
        self.capacity_blocks = capacity_blocks
        self.log = log if log is not None else ResidencyLog(clock_ns)
        self.planner = PromptPlanner(block_size=block_size, expand=expand)
        self.blocks_stored = 0
        self.blocks_evicted = 0
        self._tokens = token_maker(block_size).block
        self._salt_of = salt_of
        self._slots = slots
        self._birth = birth
        self._cpu = cpu
        self._lives = 0
        self.life = ""
        self.restart()

    def restart(self) -> str:
        """The process dies and a new one begins: new life, seq 0, empty pool, not a word on the wire."""
        self._lives += 1
        self.life = f"{self.worker}-{self.rank}-{self._birth}life{self._lives}"
        if self._cpu is not None:
            self._cpu.die(self.life)
        self.log.begin_life(self.life)
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(self.capacity_blocks))
        self._key_of: list[int | None] = [None] * self.capacity_blocks
        self._hash_of = [EngineHash(b"")] * self.capacity_blocks
        self._references = [0] * self.capacity_blocks
        self._cached: dict[int, int] = {}
        self._duplicates: dict[int, list[int]] = {}
        self._pending: list[EngineEvent] = []
        self._pending_made_ns = 0
        self._next_seq = 0
        self._serving: deque[Running] = deque()
        return self.life

    @property
    def cached_blocks(self) -> int:
        """Distinct blocks that a prompt could hit now."""
        return len(self._cached)

    @property
    def free_blocks(self) -> int:
        """Blocks that no running request holds, with content or without."""
        return len(self._free)

    @property
    def dirty(self) -> bool:
        """True if something was mutated and isn't on the wire yet."""
        return bool(self._pending)

    @property
    def next_seq(self) -> int:
        """The number that the next step will have: how many this life has told."""
        return self._next_seq

    def keys_by_tier(self) -> dict[str, set[int]]:
        """Block keys that each tier holds now."""
        held = {"gpu": set(self._cached)}
        if self._cpu is not None:
            held["cpu"] = self._cpu.keys
        return held

    def cached_keys(self) -> dict[int, int]:
        """Copies by block key: the pool as an inspection would find it."""
        return {key: 1 + len(self._duplicates.get(key, ())) for key in self._cached}

    def plan(self, request: TraceRequest) -> Prompt:
        """The request as this engine would see it."""
        return self.planner.plan(request, self._salt_of(request.tenant))

    def match(self, prompt: Prompt) -> int:
        """Leading blocks of the prompt that are cached; changes nothing. May exceed what a hit can use."""
        cached = self._cached
        for index, key in enumerate(prompt.keys):
            if key not in cached:
                return index
        return len(prompt.keys)

    def admit(self, prompt: Prompt) -> Running | None:
        """Prefill: take the hits, store the rest. None, and no change, if too few blocks are free.

        Raises `PromptTooLongError` if it can never fit.
        """
        total = len(prompt.keys) + (prompt.tail_tokens > 0)
        if total > self.capacity_blocks:
            raise PromptTooLongError(total, self.capacity_blocks)
        hits = min(self.match(prompt), max(0, prompt.tokens - 1) // prompt.block_size)
        references, free = self._references, self._free
        hit_blocks = [self._cached[key] for key in prompt.keys[:hits]]
        waiting = sum(1 for block in hit_blocks if not references[block])
        if total - hits > len(free) - waiting:
            return None
        for block in hit_blocks:
            if not references[block]:
                del free[block]
            references[block] += 1
        new = self._take(total - hits)
        whole = len(prompt.keys)
        fresh = prompt.keys[hits:]
        if fresh:
            parent = prompt.keys[hits - 1] if hits else None
            tokens = b"".join(map(self._tokens, prompt.contents[hits:whole]))
            self._store(fresh, new, parent, tokens, prompt.salt)
        return Running(
            prompt,
            hit_blocks + new,
            hits,
            prompt.output_blocks(),
            prompt.keys[-1] if prompt.keys else None,
            new[-1] if prompt.tail_tokens else None,
        )

    def decode(self, running: Running) -> bool:
        """Generate until one more block is full and stored; False, and no change, at the output's end.

        A request that finds no free block is cut short there, as if it had reached its token limit.
        """
        block = running.open_block
        if block is None and not self._free:
            return False
        filled = next(running.output, None)
        if filled is None:
            return False
        if block is None:
            block = self._take(1)[0]
            running.blocks.append(block)
        self._store((filled.key,), [block], running.tail_key, filled.tokens, running.prompt.salt)
        running.tail_key, running.open_block = filled.key, None
        return True

    def finish(self, running: Running) -> None:
        """The request leaves; its blocks stay cached until their memory is needed, the last one first."""
        references, free = self._references, self._free
        for block in reversed(running.blocks):
            references[block] -= 1
            if not references[block]:
                free[block] = None
        running.blocks = []

    def serve(self, request: TraceRequest) -> Iterator[Running]:
        """Run a request whole, yielding after each step (prefill, then one per decoded block).

        It keeps its blocks until `slots` newer requests need the place. Raises `PromptTooLongError`, and
        `PoolBusyError` if requests from `admit` hold what it needs.
        """
        prompt = self.plan(request)
        while len(self._serving) >= self._slots:
            self.finish(self._serving.popleft())
        running = self.admit(prompt)
        while running is None:
            if not self._serving:
                raise PoolBusyError(self.free_blocks)
            self.finish(self._serving.popleft())
            running = self.admit(prompt)
        self._serving.append(running)
        yield running
        while self.decode(running):
            yield running

    def drain(self) -> None:
        """Every request started by `serve` finishes."""
        while self._serving:
            self.finish(self._serving.popleft())

    def reset(self) -> bool:
        """Clear the prefix cache; False, and no change, while any block is in use.

        As in vLLM the event goes out with the next step, however long that takes.
        """
        if len(self._free) < self.capacity_blocks:
            return False
        made_ns = self.log.clear()
        self._announce(AllBlocksCleared(), made_ns)
        self._cached.clear()
        self._duplicates.clear()
        self._key_of = [None] * self.capacity_blocks
        return True

    def remove(self, hashes: Iterable[EngineHash]) -> Removal:
        """Take every copy of these hashes out of the prefix cache at once, whoever uses them.

        A copy in use stays in memory for its running request, can't be hit any more and is in `in_use` too.
        """
        removed: list[EngineHash] = []
        in_use: list[EngineHash] = []
        unknown: list[EngineHash] = []
        for name in hashes:
            key = int.from_bytes(name, "big")
            if key not in self._cached:
                unknown.append(name)
            while (block := self._cached.get(key)) is not None:
                self._forget(block)
                removed.append(name)
                if self._references[block]:
                    in_use.append(name)
        return Removal(tuple(removed), tuple(in_use), tuple(unknown))

    def take_step(self, *, told: bool = True) -> EngineStep | None:
        """End the step: what is pending is on the wire now. None, and no seq used, if nothing is.

        With `told` false the caller stamps the publication in `log` when it is one.
        """
        if not self._pending:
            return None
        step = EngineStep(self.life, self._next_seq, tuple(self._pending), self._pending_made_ns)
        if told:
            self.log.publish(self.life, self._next_seq, self._pending_made_ns)
        self._pending = []
        self._next_seq += 1
        return step

    def _take(self, count: int) -> list[int]:
        """Blocks for new content, oldest first; their old content is evicted one by one."""
        free, key_of, references = self._free, self._key_of, self._references
        taken: list[int] = []
        for _ in range(count):
            block, _ = free.popitem(False)
            references[block] = 1
            taken.append(block)
            if key_of[block] is not None:
                self._forget(block)
                self.blocks_evicted += 1
        return taken

    def _forget(self, block: int) -> None:
        key = self._key_of[block]
        assert key is not None
        self._key_of[block] = None
        if key in self._duplicates:
            made_ns = self._forget_duplicate(block, key)
        else:
            del self._cached[key]
            made_ns = self.log.drop(key)
        pending = self._pending
        if not pending:
            self._pending_made_ns = made_ns
        pending.append(BlockRemoved((self._hash_of[block],), EngineTier.GPU, GPU_MEDIUM))

    def _forget_duplicate(self, block: int, key: int) -> int:
        others = self._duplicates[key]
        if self._cached[key] == block:
            self._cached[key] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self._duplicates[key]
        return self.log.doubt(key)

    def _store(
        self, keys: tuple[int, ...], blocks: list[int], parent: int | None, tokens: bytes, salt: str | None
    ) -> None:
        cached, key_of = self._cached, self._key_of
        hash_of = self._hash_of
        hashes = tuple([EngineHash(key.to_bytes(8, "big")) for key in keys])
        for key, block, name in zip(keys, blocks, hashes, strict=False):
            key_of[block] = key
            hash_of[block] = name
            if key in cached:
                self._duplicates.setdefault(key, []).append(block)
            else:
                cached[key] = block
        made_ns = self.log.store(keys)
        self.blocks_stored += len(keys)
        extra = None
        if salt is not None:
            first = ExtraKeys(salt=salt) if parent is None else NO_EXTRA_KEYS
            extra = (first, *[NO_EXTRA_KEYS] * (len(keys) - 1))
        self._announce(
            BlockStored(
                hashes,
                None if parent is None else engine_hash(parent),
                tokens,
                self.planner.block_size,
                EngineTier.GPU,
                GPU_MEDIUM,
                extra_keys=extra,
            ),
            made_ns,
        )
        if self._cpu is not None:
            for event, at_ns in self._cpu.offload(keys, hashes):
                self._announce(event, at_ns)
            # What is published next includes this tier's mutations, which another log has stamped.
            self.log.stamp()

    def _announce(self, event: EngineEvent, made_ns: int) -> None:
        if not self._pending:
            self._pending_made_ns = made_ns
        self._pending.append(event)
