"""The bridge's side of an agent's socket: questions with deadlines, and the engine's process as a handle."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from events.hooks import agent_wire as wire
from events.hooks.engine_event import EngineHash
from events.hooks.engine_process import EngineProcess, hold, name_of
from events.kafka.deadline import within

LOG = logging.getLogger(__name__)
CONNECT_S = 0.5
RETRY_S = 1.0
MAX_UNSENT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Residents:
    """The pool's content as of publication `seq`: by group and hash, how many copies; `referenced` of them all
    belong to running requests."""

    seq: int
    copies: dict[int, dict[EngineHash, int]]
    referenced: int


class AgentClient:
    """Connects when asked something, and again after a loss; every call ends in time and says None if the agent
    gave no answer. `hello` is that of the standing connection. Used on one event loop."""

    def __init__(self, path: str, *, rank: int = 0) -> None:
        self.path = wire.path_of_rank(path, rank)
        self.hello: wire.Hello | None = None
        self.process: EngineProcess | None = None
        self._rank = rank
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[wire.Answer | None]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._retry_s = 0.0
        self._told = ""

    @property
    def connected(self) -> bool:
        return self.hello is not None

    async def connect(self, timeout_s: float = CONNECT_S) -> bool:
        """Whether an agent is there; tries at most once a second."""
        loop = asyncio.get_running_loop()
        if self.hello is not None:
            return True
        if loop.time() < self._retry_s:
            return False
        self._retry_s = loop.time() + RETRY_S
        self._drop()
        try:
            reader, self._writer = await within(asyncio.open_unix_connection(self.path), timeout_s)
        except (OSError, TimeoutError):
            return False
        self._reading = asyncio.create_task(self._read(reader))
        answer = await self._ask(wire.Ask(next(self._ids), "hello"), timeout_s)
        if not isinstance(answer, wire.Hello) or not self._fits(answer):
            self._drop()
            return False
        self._told = ""
        if self.process is None or self.process.name != name_of(answer):
            # Whoever waits for the end of the one before still holds it.
            self.process = hold(answer)
        self.hello = answer
        return True

    async def confirm(self, mark: int, timeout_s: float, *, log: str = "") -> wire.Word | None:
        """How the engine stands between two steps; `mark`: newest control offset of that log installed here."""
        answer = await self._ask(wire.Ask(next(self._ids), "confirm", mark=mark, log=log), timeout_s)
        return answer if isinstance(answer, wire.Word) else None

    async def remove(self, hashes: Sequence[bytes], request: int, timeout_s: float) -> wire.Word | None:
        """Takes every copy of these out of the cache, in every group; at most `wire.HASHES_AT_ONCE`."""
        question = wire.Ask(next(self._ids), "remove", hashes=list(hashes), request=request)
        answer = await self._ask(question, timeout_s)
        return answer if isinstance(answer, wire.Word) else None

    async def inspect(self, timeout_s: float) -> Residents | None:
        """The whole pool."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        ask = wire.Ask(next(self._ids), "inspect")
        answers = self._begin(ask)
        copies: dict[int, dict[EngineHash, int]] = {}
        referenced = 0
        try:
            while answers is not None:
                page = await within(answers.get(), max(0.0, deadline_s - loop.time()))
                if not isinstance(page, wire.Page) or not page.told:
                    return None
                for group, name, count, used in page.rows:
                    table = copies.setdefault(group, {})
                    table[EngineHash(name)] = table.get(EngineHash(name), 0) + count
                    referenced += used
                if page.last:
                    return Residents(page.seq, copies, referenced)
        except TimeoutError:
            return None
        finally:
            self._waiting.pop(ask.id, None)
        return None

    def close(self) -> None:
        """Ends the connection. Idempotent; a later call connects again."""
        self._drop()
        self.process = None

    # --- inside -------------------------------------------------------------------------------------

    def _fits(self, hello: wire.Hello) -> bool:
        why = ""
        if hello.protocol != wire.PROTOCOL:
            why = (
                f"it speaks protocol {hello.protocol}, not {wire.PROTOCOL}: install the same kvledger in both"
            )
        elif hello.rank != self._rank:
            why = f"it is rank {hello.rank}'s, not {self._rank}'s: give each rank its own path"
        if why and why != self._told:
            self._told = why
            LOG.error("the agent at %s is left alone: %s", self.path, why)
        return not why

    def _begin(self, ask: wire.Ask) -> asyncio.Queue[wire.Answer | None] | None:
        if self._writer is None or self._writer.is_closing():
            return None
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            # It hasn't read for long; what waits there is nobody's question any more.
            self._drop()
            return None
        answers: asyncio.Queue[wire.Answer | None] = asyncio.Queue()
        self._waiting[ask.id] = answers
        self._writer.write(wire.frame(ask))
        return answers

    async def _ask(self, ask: wire.Ask, timeout_s: float) -> wire.Answer | None:
        answers = self._begin(ask)
        if answers is None:
            return None
        try:
            return await within(answers.get(), timeout_s)
        except TimeoutError:
            return None
        finally:
            self._waiting.pop(ask.id, None)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        received = bytearray()
        try:
            while data := await reader.read(1 << 16):
                received += data
                for body in wire.bodies(received):
                    answer = wire.read_answer(body)
                    waiting = self._waiting.get(answer.id)
                    if waiting is not None:
                        waiting.put_nowait(answer)
        except wire.FrameError as error:
            LOG.error("the agent at %s can't be understood: %s", self.path, error)
        except OSError:
            pass
        self._reading = None
        self._drop()

    def _drop(self) -> None:
        self.hello = None
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for waiting in self._waiting.values():
            waiting.put_nowait(None)
        self._waiting.clear()
