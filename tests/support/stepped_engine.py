"""A simulated engine rank with an agent: it feeds a hook step by step and removes single blocks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import EngineBatch, EngineHash
from events.hooks.engine_port import Confirmation, Confirmed, RemovalResult, ResetResult, Unanswered
from events.hooks.engine_stream import EngineStream
from events.hooks.hook import Hook, HookIdentity
from events.hooks.host import HookHost
from events.identity import make_salt
from events.ids import Basis, Capability
from events.keyring import KeyRing
from events.model.control import PrefixScope
from events.model.signal import Load
from kvledger.simulate.engine import Running, SimEngine
from kvledger.simulate.trace import TraceRequest
from tests.support.log import PROFILE

BLOCK = 16


class SteppedEngine:
    """`await start(host)`, then `serve` prompts; `truth` is what the pool holds, as block ids."""

    capability = Capability.EVICT_BLOCKS
    admission_known = True

    def __init__(self, worker: str, keyring: KeyRing, *, rank: int = 0, capacity_blocks: int = 64) -> None:
        self.worker = worker
        self.rank = rank
        self.keyring = keyring
        self.engine = SimEngine(
            worker,
            capacity_blocks=capacity_blocks,
            clock_ns=time.monotonic_ns,
            rank=rank,
            salt_of=lambda tenant: make_salt(self.keyring[tenant].salt_key, tenant),
        )
        self.dead = False
        self.hook: Hook
        self.removed: list[EngineHash] = []
        self._running: list[tuple[Running, int]] = []

    def config(self) -> EngineConfig:
        return EngineConfig(
            removal=self.capability, admission_known=True, content=PROFILE, block_bytes=(100,)
        )

    def stream(self) -> EngineStream:
        return EngineStream(self.worker, self.rank, self.keyring, self.config())

    async def start(self, host: HookHost, stream: EngineStream | None = None) -> Hook:
        identity = HookIdentity(self.worker, self.rank)
        self.hook = await host.add(identity, self.engine.life, self, stream or self.stream())
        assert await self.hook.opened(60)
        return self.hook

    def serve(self, tenant: str, ids: Sequence[int], *, outputs: int = 0) -> None:
        """Runs a prompt of whole blocks to its end; equal ids are equal content."""
        admitted_after = self.hook.installed
        for _ in self.engine.serve(self._request(tenant, ids, outputs)):
            self.step(admitted_after)
        self.engine.drain()

    def begin(self, tenant: str, ids: Sequence[int], *, outputs: int = 0) -> Running:
        """Prefills a prompt and leaves it running."""
        running = self.engine.admit(self.engine.plan(self._request(tenant, ids, outputs)))
        assert running is not None
        self._running.append((running, self.hook.installed))
        self.step(self.hook.installed)
        return running

    def decode(self, running: Running) -> None:
        """One more block of a running request."""
        assert self.engine.decode(running)
        self.step(next(admitted for one, admitted in self._running if one is running))

    def finish(self, running: Running) -> None:
        self._running = [entry for entry in self._running if entry[0] is not running]
        self.engine.finish(running)

    def step(self, admitted_after: int | None = None) -> None:
        step = self.engine.take_step()
        if step is not None:
            batch = EngineBatch(step.engine_seq, self.rank, None, step.events, b"")
            self.hook.feed(batch, admitted_after)

    def restart(self, *, told: bool = True) -> None:
        self._running.clear()
        life = self.engine.restart()
        if told:
            self.hook.restarted(life, ended=True)

    def truth(self) -> int:
        """Distinct blocks in the pool."""
        return len(self.engine.cached_keys())

    def ids(self, tenant: str, blocks: Sequence[int]) -> PrefixScope:
        """The block ids of a prompt, as a scope."""
        prompt = self.engine.plan(self._request(tenant, blocks, 0))
        stream = self.stream()
        stream.open("x")
        scratch = SimEngine(
            self.worker,
            capacity_blocks=len(blocks) + 1,
            clock_ns=time.monotonic_ns,
            salt_of=lambda name: make_salt(self.keyring[name].salt_key, name),
        )
        scratch.admit(prompt)
        step = scratch.take_step()
        assert step is not None
        translation = stream.translate(EngineBatch(0, None, None, step.events, b""), None)
        ids = itertools.chain.from_iterable(
            event.ids for event in translation.parts[tenant] if event.type == "block_stored"
        )
        return PrefixScope(domain=tenant, ids=tuple(ids))

    # --- EnginePort ---------------------------------------------------------------------------------

    async def confirm(self, timeout_s: float) -> Confirmation:
        if self.dead:
            return Unanswered()
        self.step()
        return Confirmed(Basis.ENGINE)

    async def remove(self, hashes: Sequence[EngineHash], timeout_s: float, *, request: int) -> RemovalResult:
        self.removed.extend(hashes)
        self.engine.remove(hashes)
        return RemovalResult(removed=tuple(hashes))

    async def reset(self, timeout_s: float) -> ResetResult:
        return ResetResult("no_delete_path", "single blocks can be removed")

    def oldest_running(self) -> int | None:
        return min((admitted for _, admitted in self._running), default=None)

    def load(self) -> Load | None:
        return Load(running=len(self._running), waiting=0, kv_used=0.5)

    @staticmethod
    def _request(tenant: str, ids: Sequence[int], outputs: int) -> TraceRequest:
        return TraceRequest(
            arrival_s=0.0,
            session=None,
            tenant=tenant,
            prefix_ids=tuple(ids),
            input_tokens=len(ids) * BLOCK,
            output_tokens=outputs * BLOCK,
            block_tokens=BLOCK,
        )
