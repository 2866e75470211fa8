"""What a bridge makes of an agent: whether it is this stream's engine, and how its admissions date what is fed."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from events.hooks import agent_wire as wire
from events.hooks.agent_client import AgentClient, Residents
from events.hooks.engine_process import EngineProcess
from events.model.signal import Load

LOG = logging.getLogger(__name__)
INSPECT_S = 0.5
INSPECT_BLOCK_S = 70e-9
INSPECT_SHARE = 0.0005
"""Of the engine's time, at most, for looks at its pool; a block costs 40 to 70 ns there."""
LOST_S = 10.0
"""An agent that is gone for so long counts as none: its stream says so then."""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """A process was seen to end: its name, and every engine life that its stream has shown while it was trusted."""

    process: str
    lives: tuple[str, ...]


class AgentLink:
    """An agent is `trusted` once the engine's replay socket has confirmed the stream after the agent had said who
    it is, and until its connection ends or the stream shows another engine life; it is `expected` back for a
    while after that, so that nobody resets a cache for a moment without it. `ports`: of the event and the replay
    socket that the bridge listens to, where they are known."""

    def __init__(self, client: AgentClient, *, ports: tuple[int | None, int | None] = (None, None)) -> None:
        self.trusted = False
        self.expected = False
        self._client = client
        self._ports = ports
        self._life = ""
        self._words: deque[tuple[int, int]] = deque()
        self._word: wire.Word | None = None
        self._process: EngineProcess | None = None
        self._lives: list[str] = []
        self._lost_s: float | None = None
        self._told = ""

    @property
    def hello(self) -> wire.Hello | None:
        """Of the connection that stands; None if there is none."""
        return self._client.hello

    async def present(self) -> wire.Hello | None:
        """Connects if need be. Another engine life's agent isn't trusted yet, nor one that fits no address."""
        await self._client.connect()
        hello = self._client.hello
        if hello is None or hello.life != self._life:
            self.trusted = False
        return hello if hello is not None and self._fits(hello) else None

    def trust(self, hello: wire.Hello, life: str) -> None:
        """The stream was confirmed by replay after this hello, and shows that engine life. Nothing while the end of
        the process before is still to be told."""
        if self._client.hello is not hello:
            return
        if self._process is not self._client.process:
            if self._process is not None and self._process.ended():
                return
            self._process, self._lives = self._client.process, []
        if life not in self._lives:
            self._lives.append(life)
        if hello.life != self._life:
            self.forget()
            self._life = hello.life
        if not self.trusted:
            LOG.info("the agent at %s speaks for this stream", self._client.path)
        self.trusted = self.expected = True
        self._lost_s = None

    def forget(self) -> None:
        """The stream shows another engine life: nothing that was said holds for it."""
        self.trusted, self._life, self._word = False, "", None
        self._words.clear()

    @property
    def inspect_every_s(self) -> float:
        """How long to wait between two looks at the pool."""
        hello = self._client.hello
        return INSPECT_S if hello is None else max(INSPECT_S, hello.blocks * INSPECT_BLOCK_S / INSPECT_SHARE)

    def lost(self, now_s: float) -> bool:
        """Whether there is no agent to rely on, and hasn't been for a while."""
        if self.trusted and self._client.connected:
            self._lost_s = None
            return False
        if self._lost_s is None:
            self._lost_s = now_s
        if now_s - self._lost_s > LOST_S:
            self.expected = False
        return not self.expected

    async def stand(self, mark: int, log: str, timeout_s: float) -> wire.Word | None:
        """How the engine stands, `mark` of the log being installed; None if it doesn't say that all is told."""
        return self._take(await self._client.confirm(mark, timeout_s, log=log))

    async def remove(self, hashes: Sequence[bytes], request: int, timeout_s: float) -> wire.Word | None:
        """See `AgentClient.remove`."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        word: wire.Word | None = None
        if not self.trusted:
            return None
        for start in range(0, len(hashes), wire.HASHES_AT_ONCE):
            some, left_s = hashes[start : start + wire.HASHES_AT_ONCE], deadline_s - loop.time()
            word = self._take(await self._client.remove(some, request, left_s))
            if word is None:
                return None
        return word

    async def inspect(self, timeout_s: float) -> Residents | None:
        """See `AgentClient.inspect`."""
        return await self._client.inspect(timeout_s) if self.trusted else None

    def admitted(self, seq: int) -> int | None:
        """The offset that was installed, at the latest, when the blocks of this publication were admitted: what
        the newest word before it has said. None: nobody knows."""
        words = self._words
        while len(words) > 1 and words[1][0] < seq:
            words.popleft()
        if not words or words[0][0] >= seq or words[0][1] < 0:
            return None
        return words[0][1]

    def oldest_running(self) -> int | None:
        """See `EnginePort.oldest_running`; -1 while nobody knows."""
        word = self._word
        if word is None:
            return -1
        return word.oldest if word.running or word.waiting else None

    def load(self) -> Load | None:
        word = self._word
        if word is None or not self.trusted:
            return None
        return Load(running=word.running, waiting=word.waiting, kv_used=min(1.0, max(0.0, word.used)))

    def ended(self) -> ProcessEnd | None:
        """The end of the process that was trusted, if it has ended; once."""
        process = self._process
        if process is None or not process.ended():
            return None
        end = ProcessEnd(process.name, tuple(self._lives))
        self._process, self._lives = None, []
        return end

    def close(self) -> None:
        self._client.close()

    # --- inside -------------------------------------------------------------------------------------

    def _take(self, word: wire.Word | None) -> wire.Word | None:
        if word is None or not self.trusted or not self._client.connected:
            self.trusted = self.trusted and self._client.connected
            return None
        self._word = word
        self._words.append((word.seq, word.oldest))
        if len(self._words) > 1 and self._words[-2][0] == word.seq:
            # Nothing was published in between: the newer word dates what follows.
            del self._words[-2]
        return word if word.told else None

    def _fits(self, hello: wire.Hello) -> bool:
        said = (hello.event_port, hello.replay_port)
        differ = any(
            a is not None and b is not None and a != b for a, b in zip(said, self._ports, strict=True)
        )
        if differ and self._told != hello.life:
            self._told = hello.life
            LOG.error(
                "the agent at %s is another engine's: its publisher is at ports %s, this bridge listens to %s; "
                "give each engine its own KVLEDGER_AGENT_SOCKET, and each bridge its engine's --agent",
                self._client.path,
                said,
                self._ports,
            )
        return not differ


Attest = Callable[[str, str], None]
"""Given an engine life and the evidence that its process has ended."""
