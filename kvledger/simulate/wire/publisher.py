"""A simulated engine's publisher: a real ZMQ PUB socket, a replay ROUTER beside it, and what can go wrong.

It behaves as vLLM's: each step has the next number; the ring keeps the newest steps for replay, which is
answered before the next step is taken, silently from the oldest record on if an older one is asked for, and
ended by a mark. Loopback only. All publishers of a fleet share one context, so they cost no thread each.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import zmq
import zmq.asyncio

from events.errors import KvledgerError
from kvledger.control import wall_ms
from kvledger.simulate.engine import EngineStep, SimEngine
from kvledger.simulate.wire.message import END, encode_step, frames, replay_start

BIND_TIMEOUT_S = 5.0
_SENDS_BEFORE_A_BREAK = 256


class WireError(KvledgerError):
    """A publisher could not have its addresses back in time; the trial can't go on."""


@dataclass(slots=True)
class WireFaults:
    """What goes wrong from now on; set and reset them at any time.

    `drop`: so many next steps reach the ring but no subscriber. `vanish`: so many next steps take a number
    and are nowhere, as an event that can't be encoded. `mute`: nothing is published, the ring goes on.
    `deaf`: replay accepts questions and never answers. `endless`: replay answers without its end mark.
    `repeat`: every step is published twice, with an older one behind it. `delay_s`: subscribers get steps
    that much later, replay at once.
    """

    drop: int = 0
    vanish: int = 0
    mute: bool = False
    deaf: bool = False
    endless: bool = False
    repeat: bool = False
    delay_s: float = 0.0

    @contextmanager
    def during(self, **changes: bool | float) -> Iterator[None]:
        """Has those fields so for as long as the block runs, and then as they were."""
        before = {name: getattr(self, name) for name in changes}
        try:
            for name, value in changes.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)


@dataclass(slots=True)
class WireCounts:
    """Since the start. `published` steps were given to the socket, repeats counted."""

    published: int = 0
    dropped: int = 0
    vanished: int = 0
    replays: int = 0
    unanswered: int = 0


class Publisher:
    """One engine rank's sockets; an async context manager. `rng` decides which old steps are repeated."""

    def __init__(
        self,
        engine: SimEngine,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        ring_steps: int,
        replay: bool = True,
        rng: random.Random | None = None,
        wall_s: Callable[[], float] = lambda: wall_ms() / 1000,
    ) -> None:
        self.faults = WireFaults()
        self.counts = WireCounts()
        self.endpoint = "tcp://127.0.0.1:*"
        self.replay_endpoint = "tcp://127.0.0.1:*" if replay else None
        self.topic = f"kv@{engine.worker}-{engine.rank}@sim"
        self._engine = engine
        self._context = context
        self._rng = rng or random.Random(0)
        self._wall_s = wall_s
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=ring_steps)
        self._made_ns: dict[bytes, int] = {}
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.asyncio.Socket | None = None
        self._answering: asyncio.Task[None] | None = None

    @property
    def ring_steps(self) -> int:
        """How many steps replay can go back."""
        assert self._ring.maxlen is not None
        return self._ring.maxlen

    def made_ns(self, payload_sha256: bytes) -> int | None:
        """When the first mutation of the step with these bytes was made; None for bytes of nobody's."""
        return self._made_ns.get(payload_sha256)

    def resize(self, ring_steps: int) -> None:
        """From now on replay goes back that far; what is older is gone."""
        self._ring = deque(self._ring, maxlen=ring_steps)

    def publish(self, step: EngineStep) -> None:
        """Puts a step on the wire, through the faults, and stamps that in the engine's truth."""
        if self.faults.vanish:
            self.faults.vanish -= 1
            self.counts.vanished += 1
            # The stamp comes with the next step: until then nobody can know that there was one.
            return
        payload = encode_step(step.events, rank=self._engine.rank, ts=self._wall_s())
        self._made_ns[hashlib.sha256(payload).digest()] = step.made_ns
        self._ring.append((step.engine_seq, payload))
        self._engine.log.publish(step.life, step.engine_seq, step.made_ns)
        if self.faults.mute or self.faults.drop:
            self.faults.drop = max(0, self.faults.drop - 1)
            self.counts.dropped += 1
            return
        pub = self._pub
        if pub is None:
            return
        if self.faults.delay_s:
            later = asyncio.get_running_loop().call_later
            later(self.faults.delay_s, self._send, pub, step.engine_seq, payload)
        else:
            self._send(pub, step.engine_seq, payload)
        if self.faults.repeat:
            self._send(pub, step.engine_seq, payload)
            self._send(pub, *self._rng.choice(self._ring))

    async def open(self) -> None:
        """Binds; a second time to the same addresses. Raises WireError."""
        pub = self._context.socket(zmq.PUB)
        pub.set(zmq.LINGER, 0)
        pub.set(zmq.SNDHWM, 100_000)
        self._pub = pub
        self.endpoint = await _bind(pub, self.endpoint)
        if self.replay_endpoint is not None:
            router = zmq.asyncio.Context(shadow=self._context).socket(zmq.ROUTER)
            router.set(zmq.LINGER, 0)
            router.set(zmq.SNDHWM, 0)
            self._router = router
            self.replay_endpoint = await _bind(router, self.replay_endpoint)
            self._answering = asyncio.create_task(self._answer(router))

    async def close(self) -> None:
        """The process is gone: connections end, the ring is lost. Idempotent; may be opened again."""
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
            self._answering = None
        for socket in (self._pub, self._router):
            if socket is not None:
                socket.close(linger=0)
        self._pub = self._router = None
        self._ring.clear()

    def _send(self, pub: zmq.Socket[bytes], seq: int, payload: bytes) -> None:
        if not pub.closed:
            pub.send_multipart(frames(self.topic.encode(), seq, payload), zmq.NOBLOCK)
            self.counts.published += 1

    async def _answer(self, router: zmq.asyncio.Socket) -> None:
        while True:
            question = replay_start(await router.recv_multipart())
            if question is None:
                continue
            client, start = question
            self.counts.replays += 1
            if self.faults.deaf:
                self.counts.unanswered += 1
                continue
            records = [record for record in self._ring if record[0] >= start]
            for number, (seq, payload) in enumerate(records, 1):
                await router.send_multipart([client, b"", *frames(self.topic.encode(), seq, payload)])
                if number % _SENDS_BEFORE_A_BREAK == 0:
                    await asyncio.sleep(0)
            if not self.faults.endless:
                await router.send_multipart([client, b"", *END])


async def _bind(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, endpoint: str) -> str:
    """Binds, waiting for the former life's socket: ZeroMQ frees a port a moment after the close."""
    deadline_s = time.monotonic() + BIND_TIMEOUT_S
    while True:
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline_s:
                raise WireError(f"{endpoint} can't be bound: {error}") from error
            await asyncio.sleep(0.01)
        else:
            address = socket.get(zmq.LAST_ENDPOINT)
            assert isinstance(address, bytes)
            return address.rstrip(b"\0").decode()
