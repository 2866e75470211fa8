"""A witness as a process: what it has cosigned is on disk before it answers. Only Python's own HTTP server."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from auditor.checkpoint import NoteError, NoteKey, TreeHead, cosign, parse_head
from auditor.witness import MAX_REQUEST_BYTES, SIZE_TYPE, RefusedError, examine, parse_request
from events.chain import sha256
from events.errors import KvledgerError
from events.signing import Signer

REQUEST_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 64


class WitnessStateError(KvledgerError):
    """What a witness remembers can't be read or is in use. It must not begin anew: it would cosign a second
    history. Its owner restores the folder, or gives the witness another name and key."""


class WitnessMemory:
    """The newest head cosigned for each log, one file each, in a folder that one process uses at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: int | None = None
        self.newest: dict[str, TreeHead] = {}

    def open(self) -> None:
        """Takes the folder and reads it. Raises WitnessStateError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise WitnessStateError(f"another witness uses {self._folder}") from error
        except OSError as error:
            raise WitnessStateError(f"{self._folder} can't be used: {error.strerror}") from error
        for path in sorted(self._folder.glob("*.head")):
            try:
                head = parse_head(json.loads(path.read_text())["text"])
            except (OSError, ValueError, KeyError, TypeError, NoteError) as error:
                self.close()
                raise WitnessStateError(f"{path} can't be read ({type(error).__name__})") from error
            self.newest[head.origin] = head

    def remember(self, head: TreeHead) -> None:
        """Makes the head the newest of its log, durably. Raises OSError: then nothing may be cosigned."""
        path = self._folder / f"{sha256(head.origin.encode()).hex()[:32]}.head"
        partial = path.with_suffix(".partial")
        with partial.open("w") as file:
            json.dump({"text": head.text()}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.newest[head.origin] = head

    def close(self) -> None:
        """Leaves the folder to others. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class Witness:
    """`key` is the witness's own, `logs` has the keys that each log's checkpoints may be signed with."""

    def __init__(
        self,
        key: NoteKey,
        signer: Signer,
        logs: Mapping[str, Sequence[NoteKey]],
        memory: WitnessMemory,
        now_s: Callable[[], int],
    ) -> None:
        self._key = key
        self._signer = signer
        self._logs = logs
        self._memory = memory
        self._now_s = now_s
        self._one_at_a_time = threading.Lock()

    def add(self, body: bytes) -> str:
        """The cosignature line for a request's checkpoint, once its head is remembered. Raises RefusedError."""
        request = parse_request(body)
        with self._one_at_a_time:
            head = examine(request, self._logs, self._memory.newest)
            if self._memory.newest.get(head.origin) != head:
                try:
                    self._memory.remember(head)
                except OSError as error:
                    raise RefusedError(500, "the checkpoint can't be remembered") from error
            return cosign(request.note.text, self._key, self._signer, self._now_s()).line()


class WitnessServer(ThreadingHTTPServer):
    """Serves `POST /add-checkpoint`; `server_address` says where. Raises OSError if the address is taken."""

    daemon_threads = True
    request_queue_size = 2 * MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], witness: Witness) -> None:
        self.witness = witness
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Closes a connection at once when there are too many: the client tries again."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no event; anything else is shown."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: WitnessServer
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_TIMEOUT_S

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            self._answer(411, "give the body's length\n", last=True)
        elif len(length) > 9 or int(length) > MAX_REQUEST_BYTES:
            self._answer(413, "the body is too long\n", last=True)
        else:
            body = self.rfile.read(int(length))
            if len(body) < int(length):
                self.close_connection = True
            elif self.path != "/add-checkpoint":
                self._answer(404, "there is /add-checkpoint only\n")
            else:
                self._add(body)

    def _add(self, body: bytes) -> None:
        try:
            self._answer(200, self.server.witness.add(body))
        except RefusedError as refused:
            if refused.size is not None:
                self._answer(refused.status, f"{refused.size}\n", kind=SIZE_TYPE)
            else:
                self._answer(refused.status, f"{refused}\n")

    def _answer(
        self, status: int, text: str, *, kind: str = "text/plain; charset=utf-8", last: bool = False
    ) -> None:
        raw = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        if last:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: who asks for what is nobody's business, and a refusal is told to who asked."""
