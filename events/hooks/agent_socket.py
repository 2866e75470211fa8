"""The agent's socket file: who may have it, and who may connect. Standard library only, in the engine's process."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from pathlib import Path

from events.hooks import agent_wire as wire

MAX_CLIENTS = 8


class SocketError(Exception):
    """The socket can't be had; the text says what to do."""


def listen(path: str) -> socket.socket:
    """A listening socket that only this user can connect to, and whose path appears once it listens. What a dead
    engine has left there is replaced; raises SocketError for a living one and for whatever isn't a socket."""
    place = Path(path)
    if not place.is_absolute() or len(os.fsencode(path)) > wire.MAX_PATH_BYTES:
        raise SocketError(f"{path!r} must be an absolute path of at most {wire.MAX_PATH_BYTES} bytes")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A bound socket that doesn't listen yet looks like a dead engine's: whoever starts beside would replace it.
    begun = f"{path}~{os.getpid()}"
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _clear(path)
        _clear(begun)
        listening.bind(begun)
        try:
            os.chmod(begun, 0o600)
            listening.listen(MAX_CLIENTS)
            listening.setblocking(False)
            os.link(begun, path)
        finally:
            os.unlink(begun)
    except OSError as error:
        listening.close()
        raise SocketError(f"{path!r} can't be bound: {error.strerror or error}") from error
    except SocketError:
        listening.close()
        raise
    return listening


def place_of(path: str) -> tuple[int, int] | None:
    """What tells this socket file from another one that has taken its place."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def leave(path: str, place: tuple[int, int] | None) -> None:
    """Removes the file if it is still the one that was bound."""
    if place is not None and place_of(path) == place:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _clear(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise SocketError(f"{path!r} is there already and is no socket: name another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        found = probe.connect_ex(path)
    if found in (0, errno.EAGAIN, errno.EINPROGRESS):
        raise SocketError(f"{path!r} is in use by another engine: give each engine its own path")
    os.unlink(path)


def is_ours(connection: socket.socket) -> bool:
    """Whether this user, or root, has connected."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (0, os.geteuid())
