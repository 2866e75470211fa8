"""What the agent in an engine and the bridge beside it say to each other over a local unix socket.

Frames: four bytes of length (big endian), then one msgpack map. The bridge asks (`Ask`), the agent answers under
the same `id`. Loaded inside the engine's process: standard library and msgspec only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Annotated

import msgspec

PROTOCOL = 1
MAX_FRAME_BYTES = 8 << 20
MAX_ASK_BYTES = 1 << 19
"""A whole order of digests fits; reading it takes the engine's interpreter a millisecond, not a second."""
HASHES_AT_ONCE = 4_096
"""Hashes in one order to remove, and rows in one page of an inspection."""
NOBODY = -1
"""No control offset: admitted before any bridge had told one."""
SOCKET_VARIABLE = "KVLEDGER_AGENT_SOCKET"
MAX_PATH_BYTES = 99
"""107 of a socket's address, less what its path ends in until it listens: `~` and a process number."""
_HEAD = struct.Struct(">I")
_MOST = (1 << 62) - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Number = Annotated[int, msgspec.Meta(ge=-1, le=_MOST)]
"""A publication's or a control record's; -1: none."""


def path_of_rank(path: str, rank: int) -> str:
    """The socket of one data-parallel rank: the path itself for rank 0, with `.RANK` behind it for others."""
    return path if rank == 0 else f"{path}.{rank}"


class FrameError(ValueError):
    """The other side doesn't speak this protocol: close the connection."""


class Ask(msgspec.Struct, omit_defaults=True):
    """A question. `mark`: newest control offset that the asking hook has installed of the log `log`; `hashes`: as
    they stand on the engine's event socket (eight bytes of an integer, or a digest); `request`: number of the
    deletion."""

    id: int
    ask: str
    mark: Number = NOBODY
    log: str = ""
    hashes: list[bytes] = []
    request: Number = NOBODY


class Group(msgspec.Struct):
    """An attention group of the engine: what its events say of it, and its block size in tokens."""

    index: int
    kind: str
    block_tokens: int
    window: int | None = None


class Hello(msgspec.Struct, tag="hello", omit_defaults=True):
    """Who answers: `life` names this engine life, `pid`, `started` (clock ticks since boot) and `boot` its
    process; `blocks` is the pool's size; `event_port`, `replay_port`: where the publisher of this rank is."""

    id: int
    protocol: int
    life: str
    pid: int
    started: str
    boot: str
    version: str
    rank: Count
    blocks: Count
    groups: list[Group]
    event_port: int | None = None
    replay_port: int | None = None


class Word(msgspec.Struct, tag="word", omit_defaults=True):
    """As of one moment between two steps: everything mutated is in publications up to `seq` (-1: none yet), if
    `told`. `oldest`: every request that runs now, or is admitted later, was admitted with at least this mark
    (-1: unknown). `used`: share of the pool. After a removal: physical blocks `removed`, of which `referenced`
    are still in the memory of running requests."""

    id: int
    seq: Number
    told: bool
    oldest: Number
    running: Count
    waiting: Count
    used: float
    removed: Count = 0
    referenced: Count = 0


class Page(msgspec.Struct, tag="page", omit_defaults=True):
    """Part of an inspection as of publication `seq`: (group, hash, copies, copies referenced)."""

    id: int
    seq: Number
    told: bool
    rows: list[tuple[Count, bytes, Count, Count]]
    last: bool = False


class Failed(msgspec.Struct, tag="failed"):
    """The agent can't answer; `why` is for a log."""

    id: int
    why: str


Answer = Hello | Word | Page | Failed

_ENCODE = msgspec.msgpack.Encoder()
_ASK = msgspec.msgpack.Decoder(Ask)
_ANSWER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def frame(message: Ask | Answer) -> bytes:
    """One message's bytes on the socket."""
    body = _ENCODE.encode(message)
    return _HEAD.pack(len(body)) + body


def bodies(buffer: bytearray, most: int = MAX_FRAME_BYTES) -> Iterator[bytes]:
    """Takes whole frames out of what has been received so far. Raises FrameError for one of more than `most`
    bytes."""
    while len(buffer) >= _HEAD.size:
        (length,) = _HEAD.unpack_from(buffer)
        if length > most:
            raise FrameError(f"a frame of {length} bytes")
        if len(buffer) < _HEAD.size + length:
            return
        body = bytes(buffer[_HEAD.size : _HEAD.size + length])
        del buffer[: _HEAD.size + length]
        yield body


def read_ask(body: bytes) -> Ask:
    """Raises FrameError."""
    try:
        ask = _ASK.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError("no question") from error
    if len(ask.hashes) > HASHES_AT_ONCE:
        raise FrameError(f"{len(ask.hashes)} hashes at once")
    return ask


def read_answer(body: bytes) -> Answer:
    """Raises FrameError."""
    try:
        return _ANSWER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError("no answer") from error
