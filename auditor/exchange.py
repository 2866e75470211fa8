"""One HTTP exchange with somebody who isn't trusted: bounded in bytes, and in time as a whole."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult

from events.errors import KvledgerError


class NoAnswerError(KvledgerError):
    """The other side can't be reached, speaks no HTTP, or is too slow; the message is the fault's name."""


class Answer(NamedTuple):
    status: int
    raw: bytes
    kind: str
    """Its content type, without parameters."""


def post(
    to: SplitResult, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float, most: int
) -> Answer:
    """Posts a body and reads at most `most` bytes of the answer. Blocking, for `timeout_s` at most: a trickle of bytes
    doesn't prolong it. Raises NoAnswerError."""
    late: threading.Timer | None = None
    connection: http.client.HTTPConnection | None = None
    try:
        kind = http.client.HTTPSConnection if to.scheme == "https" else http.client.HTTPConnection
        connection = kind(to.hostname or "", to.port, timeout=timeout_s)
        connection.connect()
        late = threading.Timer(timeout_s, _hang_up, (connection.sock,))
        late.daemon = True
        late.start()
        connection.request("POST", path, body, dict(headers))
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(most), answer.headers.get_content_type())
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NoAnswerError(type(error).__name__) from error
    finally:
        if late is not None:
            late.cancel()
        if connection is not None:
            connection.close()


def _hang_up(sock: socket.socket) -> None:
    """Ends what the exchange waits for."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
