"""Where an auditor keeps what it has folded: a state and a file of older header hashes for each request, below
`audit-state/` of the home folder. Losing or spoiling them costs time only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO
from urllib.parse import quote

from auditor.evidence import Evidence
from auditor.fold_state import FoldStateError, LastRecord, Resumed, pack, rule_digest, unpack
from auditor.main_log import MainLog
from auditor.seen import SeenHashes
from events.signing import Signer, verify
from kvledger.whole_file import put


class FileSpill:
    """`Spill` in a file."""

    def __init__(self, file: IO[bytes], size: int = 0) -> None:
        self._file = file
        self.size = size

    def append(self, chunk: bytes) -> int:
        at, self.size = self.size, self.size + len(chunk)
        self._file.seek(at)
        self._file.write(chunk)
        return at

    def read(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        return self._file.read(size)

    def cut(self, size: int) -> bool:
        """Forgets all behind `size`; False if there isn't as much."""
        if self._file.seek(0, os.SEEK_END) < size:
            return False
        self._file.truncate(size)
        self.size = size
        return True

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class AuditStates:
    """Of one log's requests. `keep` False: nothing is read or kept, older hashes go to temporary files."""

    def __init__(self, home: Path, signer: Signer, *, keep: bool) -> None:
        self._home, self._signer, self._keep = home / "audit-state", signer, keep
        self._spills: dict[int, FileSpill] = {}
        self._kept: set[int] = set()
        self._rule = rule_digest() if keep else b""

    def new_seen(self, number: int) -> SeenHashes:
        """For a stream of a request's evidence."""
        if number not in self._spills:
            self._spills[number] = FileSpill(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115 - closed by `close`
        return SeenHashes(self._spills[number])

    def load(self, number: int, main: MainLog, alias_keys: Mapping[str, bytes]) -> tuple[Resumed | None, str]:
        """The state of a request, or why there is none that fits."""
        if not self._keep:
            return None, ""
        try:
            spill = self._open(number, main.registry.log)
        except OSError as error:
            return None, str(error)
        if spill is None:
            return None, "another audit of the request is running"
        path = self._path(number, main.registry.log, "state")
        try:
            raw = path.read_bytes()
            found = unpack(
                raw,
                number,
                main.registry,
                alias_keys,
                verify,
                self._signer.public_key,
                main.roots,
                spill,
                self._rule,
            )
            if not spill.cut(found.head.spilled):
                raise FoldStateError("its file of older header hashes is cut")
        except FileNotFoundError:
            spill.cut(0)
            return None, ""
        except (FoldStateError, OSError) as error:
            path.unlink(missing_ok=True)
            spill.cut(0)
            return None, str(error)
        return found, ""

    def save(self, number: int, evidence: Evidence, partitions: list[LastRecord], main: MainLog) -> str:
        """Keeps an evidence that reaches to `partitions`, where the main log as it is now ends; why it couldn't be
        written, if so. Then what was kept before stays."""
        if number not in self._kept:
            return ""
        spill = self._spills[number]
        raw = pack(
            evidence,
            partitions,
            (main.size, main.roots[main.size]),
            spill,
            spill.size,
            self._signer,
            self._rule,
        )
        path = self._path(number, main.registry.log, "state")
        try:
            if raw is None:
                path.unlink(missing_ok=True)
                return ""
            spill.sync()
            put(path, raw, mode=0o600)
        except OSError as error:
            return f"what was read can't be kept for the next audit: {path}: {error.strerror or error}"
        return ""

    def discard(self, log: str) -> None:
        """Forgets the states of this run: something of them was changed."""
        for number in self._kept:
            self._path(number, log, "state").unlink(missing_ok=True)
        self._kept.clear()
        self._keep = False
        self.close()

    def close(self) -> None:
        """Idempotent."""
        for spill in self._spills.values():
            spill.close()
        self._spills.clear()

    def _open(self, number: int, log: str) -> FileSpill | None:
        """The request's own file of older hashes, None if another process has it."""
        if number in self._kept:
            return self._spills[number]
        path = self._path(number, log, "seen")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (ImportError, OSError):  # taken, or a system that can't say
            file.close()
            return None
        self._spills[number] = FileSpill(file)
        self._kept.add(number)
        return self._spills[number]

    def _path(self, number: int, log: str, kind: str) -> Path:
        return self._home / quote(log, safe="") / f"{number}.{kind}"
