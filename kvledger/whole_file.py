"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from kvledger.failure import CommandError, ExitCode


def put(path: Path, raw: bytes, *, mode: int) -> None:
    """Replaces a file, or leaves it as it was; a new one has this mode. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def write_whole(
    path: Path, raw: bytes, *, advice: str = "", exit_code: ExitCode = ExitCode.CONFIGURATION
) -> None:
    """Replaces a file, or leaves it as it was: what is cut never lies under the final name. What is no regular file (a
    pipe, a terminal) is written to as it is. Raises CommandError, by default with the code of a configuration,
    which no verdict has."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_bytes(raw)
            return
        put(path.resolve(), raw, mode=0o666)
    except OSError as error:
        raise CommandError(
            f"{path} can't be written: {error.strerror or type(error).__name__}",
            advice=advice,
            exit_code=exit_code,
        ) from error
