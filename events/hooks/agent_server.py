"""The agent's socket: one thread that carries questions to the engine's thread and answers back.

It sleeps unless asked, does nothing heavy, and holds nothing that the engine's thread could wait for: what is to
be done there is put into the engine's own queue, and done between two steps. Standard library and msgspec only.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from events.hooks import agent_wire as wire
from events.hooks.agent_pool import Contents, EnginePool, Removal, Standing
from events.hooks.agent_socket import MAX_CLIENTS, is_ours, leave, listen, place_of

DOOR_S = 0.05
MAX_OUTSTANDING = 64
MAX_UNSENT_BYTES = 32 << 20
PAUSE_S = 0.0005
"""Between two slices of one removal, so that the engine has a step in between."""
BUSY_SHARE = 0.05
SLICE_S = (0.0002, 0.002)
"""A slice takes this share of the time since the last one, within these limits; the upper one while idle."""

Post = Callable[[Callable[[], None]], None]
"""Has something done on the engine's thread, between two steps, also when the engine is idle."""
Fail = Callable[[str, Exception], None]


class _Client:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()
        self.unsent = bytearray()
        self.outstanding = 0
        self.looking = False


class AgentServer:
    """Binds `path` on construction (raises SocketError); `start` begins to serve. `hello` answers with who the
    engine is, under the id of the question. `fail` is told of an error, after which nothing is served.
    """

    def __init__(
        self,
        path: str,
        pool: EnginePool,
        *,
        post: Post,
        idle: Callable[[], bool],
        hello: Callable[[int], wire.Hello],
        fail: Fail,
        monotonic_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._path = path
        self._pool = pool
        self._post = post
        self._idle = idle
        self._hello = hello
        self._fail = fail
        self._monotonic_s = monotonic_s
        self._listening = listen(path)
        self._place = place_of(path)
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._clients: dict[socket.socket, _Client] = {}
        self._done: deque[Callable[[], None]] = deque()
        self._later: deque[Callable[[], None]] = deque()
        self._slice_s = 0.0
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="kvledger-agent", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Closes every connection; on any thread, waits for nothing. Idempotent."""
        begun, self._ended = self._thread.ident is not None, True
        if begun:
            self._wake()
        else:
            self._close()

    @property
    def ended(self) -> bool:
        """Whether everything is closed."""
        return self._ended and not self._thread.is_alive()

    # --- on the engine's thread ---------------------------------------------------------------------

    def _on_engine(self, work: Callable[[], Callable[[], None] | None]) -> None:
        """Posts work whose result is something to be done here afterwards."""

        def run() -> None:
            if self._ended:
                return
            try:
                answer = work()
            except Exception as error:  # noqa: BLE001 - the engine must not see it
                self._fail("on the engine's thread", error)
                return
            if answer is not None:
                self._done.append(answer)
                self._wake()

        self._post(run)

    def _slice(self, order: Removal) -> bool:
        now_s = self._monotonic_s()
        least_s, most_s = SLICE_S
        share_s = most_s if self._idle() else BUSY_SHARE * (now_s - self._slice_s)
        until_s = now_s + min(most_s, max(least_s, share_s))
        done = self._pool.remove(order, lambda: self._monotonic_s() > until_s)
        self._slice_s = self._monotonic_s()
        return done

    def _wake(self) -> None:
        # A full pair means that the thread has been woken already.
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    # --- on this thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended:
                self._turn()
        except Exception as error:  # noqa: BLE001 - a thread's end is said in the log
            self._fail("on its own thread", error)
        finally:
            self._ended = True
            self._close()

    def _close(self) -> None:
        for client in list(self._clients.values()):
            self._drop(client)
        for one in (self._listening, self._waker, self._woken):
            one.close()
        self._selector.close()
        leave(self._path, self._place)

    def _turn(self) -> None:
        ready = self._selector.select(PAUSE_S if self._later else None)
        for key, events in ready:
            if key.fileobj is self._listening:
                self._accept()
            elif key.fileobj is self._woken:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4_096)
            else:
                client = self._clients.get(key.fileobj)  # type: ignore[call-overload]
                if client is not None and events & selectors.EVENT_WRITE:
                    self._write(client)
                if client is not None and events & selectors.EVENT_READ:
                    self._read(client)
        later, self._later = self._later, deque()
        for again in later:
            again()
        while self._done:
            self._done.popleft()()

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except BlockingIOError:
            return
        except OSError:
            # No descriptor is left in this process: it waits for one at the door, and is not asked without pause.
            time.sleep(DOOR_S)
            return
        if not is_ours(connection):
            connection.close()
            return
        if len(self._clients) >= MAX_CLIENTS:
            self._drop(next(iter(self._clients.values())))
        connection.setblocking(False)
        self._clients[connection] = _Client(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.connection, None) is not None:
            self._selector.unregister(client.connection)
            client.connection.close()

    def _read(self, client: _Client) -> None:
        try:
            data = client.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        # Who has spoken last is the last to be sent away for another one.
        self._clients[client.connection] = self._clients.pop(client.connection)
        client.received += data
        try:
            for body in wire.bodies(client.received, wire.MAX_ASK_BYTES):
                self._take(client, wire.read_ask(body))
        except wire.FrameError:
            self._drop(client)

    def _take(self, client: _Client, ask: wire.Ask) -> None:
        if client.outstanding >= MAX_OUTSTANDING:
            # Whoever asks without waiting for answers is no bridge.
            self._drop(client)
            return
        client.outstanding += 1
        match ask.ask:
            case "hello":
                self._answer(client, self._hello(ask.id))
            case "confirm":
                self._on_engine(lambda: self._stand(client, ask))
            case "inspect" if client.looking:
                self._answer(client, wire.Failed(ask.id, "one look at a time"))
            case "inspect":
                client.looking = True
                self._on_engine(lambda: self._inspect(client, ask))
            case "remove":
                keys = self._pool.resolve(ask.hashes, _let_others)
                order = Removal(keys, ask.request)
                self._on_engine(lambda: self._remove(client, ask, order))
            case _:
                self._answer(client, wire.Failed(ask.id, "unknown question"))

    def _stand(self, client: _Client, ask: wire.Ask) -> Callable[[], None]:
        standing = self._pool.stand(ask.mark, ask.log)
        return lambda: self._answer(client, _word(ask.id, standing))

    def _inspect(self, client: _Client, ask: wire.Ask) -> Callable[[], None]:
        contents = self._pool.contents()
        return lambda: self._pages(client, ask.id, contents)

    def _remove(self, client: _Client, ask: wire.Ask, order: Removal) -> Callable[[], None]:
        if not self._slice(order):
            return lambda: self._later.append(
                lambda: self._on_engine(lambda: self._remove(client, ask, order))
            )
        standing = self._pool.stand()
        word = _word(ask.id, standing)
        word.removed, word.referenced = order.removed, order.referenced
        return lambda: self._answer(client, word)

    def _pages(self, client: _Client, number: int, contents: Contents) -> None:
        rows: list[tuple[int, bytes, int, int]] = []
        for row in self._pool.rows(contents):
            rows.append(row)
            if len(rows) % wire.HASHES_AT_ONCE == 0:
                self._send(client, wire.Page(number, contents.seq, contents.told, rows))
                rows = []
            if len(rows) % 256 == 0:
                _let_others()
        client.looking = False
        self._answer(client, wire.Page(number, contents.seq, contents.told, rows, last=True))

    def _answer(self, client: _Client, answer: wire.Answer) -> None:
        client.outstanding -= 1
        self._send(client, answer)

    def _send(self, client: _Client, answer: wire.Answer) -> None:
        if client.connection in self._clients:
            client.unsent += wire.frame(answer)
            self._write(client)

    def _write(self, client: _Client) -> None:
        try:
            sent = client.connection.send(client.unsent) if client.unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(client)
            return
        del client.unsent[:sent]
        if len(client.unsent) > MAX_UNSENT_BYTES:
            # It asks and doesn't read: its memory is its own affair.
            self._drop(client)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unsent else 0)
        self._selector.modify(client.connection, events)


def _let_others() -> None:
    """Lets go of the interpreter, so that the engine's thread never waits a switch interval for this one."""
    time.sleep(0)


def _word(number: int, standing: Standing) -> wire.Word:
    return wire.Word(
        number,
        standing.seq,
        standing.told,
        standing.oldest,
        standing.running,
        standing.waiting,
        standing.used,
    )
