"""Files that people keep: written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from kvledger.failure import CommandError, ExitCode


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
        target = path.resolve()
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with partial.open("wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CommandError(
            f"{path} can't be written: {error.strerror or type(error).__name__}",
            advice=advice,
            exit_code=exit_code,
        ) from error
