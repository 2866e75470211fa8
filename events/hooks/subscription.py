"""The event socket of one engine: what comes over it, one message at a time, told apart but not yet placed."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import zmq
import zmq.asyncio

from events.errors import DecodeError
from events.hooks.engine_position import EngineMessage
from events.hooks.engine_recovery import Heartbeat, ReadHeartbeat
from events.hooks.engine_source import ForeignTopic, UnreadableFrames
from events.hooks.engine_wire import END_SEQ, decode_frames
from events.hooks.replay import MAX_MESSAGE_BYTES

QUEUE_MESSAGES = 10_000
"""Below the number of digests that a position remembers, so that a repeat in the queue is known as one."""
_FOREIGN_TOLD = 64

Taken = EngineMessage | Heartbeat | ForeignTopic | UnreadableFrames


class Subscription:
    """`endpoint` is connected to, or, if it holds a `*`, bound: on the loopback address unless
    `bind_all_interfaces`. `topic` names the engine where several publish into one socket; empty takes the first
    that is seen. The socket belongs to the running loop."""

    def __init__(
        self, endpoint: str, topic: str, *, bind_all_interfaces: bool, read_heartbeat: ReadHeartbeat | None
    ) -> None:
        self.endpoint = endpoint
        self.topic: str | None = topic or None
        self.socket: zmq.asyncio.Socket | None = None
        self._bind_all_interfaces = bind_all_interfaces
        self._read_heartbeat = read_heartbeat
        self._foreign: set[str] = set()
        self._context = zmq.asyncio.Context()

    def open(self) -> zmq.asyncio.Socket:
        """The socket, made if need be. Raises zmq.ZMQError for an address that is none."""
        if self.socket is None:
            socket = self._context.socket(zmq.SUB)
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.RCVHWM, QUEUE_MESSAGES)
            socket.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.set(zmq.RECONNECT_IVL, 50)
            socket.set(zmq.RECONNECT_IVL_MAX, 1000)
            socket.set(zmq.HEARTBEAT_IVL, 5000)
            socket.set(zmq.HEARTBEAT_TIMEOUT, 15_000)
            socket.subscribe((self.topic or "").encode())
            self.socket = socket
            if "*" in self.endpoint:
                host = "*" if self._bind_all_interfaces else "127.0.0.1"
                socket.bind(self.endpoint.replace("*", host, 1))
            else:
                socket.connect(self.endpoint)
        return self.socket

    def close(self) -> None:
        """Idempotent."""
        if self.socket is not None:
            self.socket.close(linger=0)
            self.socket = None
        end(self._context)

    async def waiting(self, timeout_s: float) -> bool:
        """Whether something is there, or comes in time."""
        return bool(await self.open().poll(max(0, int(timeout_s * 1000))))

    async def take(self) -> Sequence[Taken] | None:
        """The next message, none if it is to be left out in silence; None: nothing is there now."""
        try:
            frames = await self.open().recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        heartbeat = None if self._read_heartbeat is None else self._read_heartbeat(frames)
        if heartbeat is not None:
            return (heartbeat,)
        try:
            topic, seq, payload = decode_frames(frames)
        except DecodeError:
            return (UnreadableFrames(len(frames)),)
        if len(frames) != 3 or seq == END_SEQ:
            return (UnreadableFrames(len(frames)),)
        if self.topic is None:
            self.topic = topic
        return (EngineMessage(topic, seq, payload),) if topic == self.topic else self._left_out(topic)

    async def discard(self) -> None:
        """Drops what is there now."""
        socket = self.open()
        try:
            for _ in range(QUEUE_MESSAGES):
                await socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return

    def _left_out(self, topic: str) -> Sequence[ForeignTopic]:
        if topic in self._foreign or len(self._foreign) >= _FOREIGN_TOLD:
            return ()
        self._foreign.add(topic)
        return (ForeignTopic(topic),)


def end(context: zmq.asyncio.Context) -> None:
    """Ending a context waits for its thread, which may be waiting for a name server: not for long here."""
    ending = threading.Thread(target=context.term, daemon=True)
    ending.start()
    ending.join(0.2)
