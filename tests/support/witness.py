"""A log's checkpoints and a witness for them; run as a program, a witness that dies between disk and answer."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from auditor.checkpoint import KeyKind, Note, NoteKey, TreeHead, sign
from auditor.tree import Tree, consistency_proof, leaf_hash
from auditor.witness_client import Prove, WitnessAddress
from auditor.witness_server import Witness, WitnessMemory, WitnessServer
from events.chain import sha256
from events.signing import Signer

LOG = Signer.from_seed(sha256(b"a log"))
LOG_KEY = NoteKey("kvledger.audit/log-test", LOG.public_key)
WITNESS = Signer.from_seed(sha256(b"a witness"))
WITNESS_KEY = NoteKey("witness.example/1", WITNESS.public_key, KeyKind.COSIGNATURE)
NOW_S = 1_700_000_000


def leaves(size: int, history: str = "") -> list[bytes]:
    """A log's leaves; another `history` differs from the third leaf on."""
    return [leaf_hash(f"{history if at > 1 else ''}{at}".encode()) for at in range(size)]


def checkpoint(size: int, history: str = "", signer: Signer = LOG, key: NoteKey = LOG_KEY) -> Note:
    text = TreeHead(key.name, size, Tree().extend(leaves(size, history)).root()).text()
    return Note(text, (sign(text, key, signer),))


def prove(size: int, history: str = "") -> Prove:
    """For `ask_witness`."""
    return lambda old: consistency_proof(leaves(size, history), old)


def witness(folder: Path, memory: type[WitnessMemory] = WitnessMemory) -> tuple[Witness, WitnessMemory]:
    made = memory(folder)
    made.open()
    return Witness(WITNESS_KEY, WITNESS, {LOG_KEY.name: [LOG_KEY]}, made, lambda: NOW_S), made


@contextmanager
def serving(folder: Path) -> Iterator[WitnessAddress]:
    """A witness behind a real socket."""
    made, memory = witness(folder)
    server = WitnessServer(("127.0.0.1", 0), made)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield WitnessAddress(f"http://127.0.0.1:{server.server_port}", WITNESS_KEY)
    finally:
        server.shutdown()
        server.server_close()
        memory.close()
        thread.join()


class DyingMemory(WitnessMemory):
    """The process ends the moment a head is on disk."""

    def remember(self, head: TreeHead) -> None:
        super().remember(head)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    dying, _ = witness(Path(sys.argv[1]), DyingMemory)
    real = WitnessServer(("127.0.0.1", 0), dying)
    sys.stdout.write(f"{real.server_port}\n")
    sys.stdout.flush()
    real.serve_forever()
