"""The real `kvledger` command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KVLEDGER = (sys.executable, "-m", "kvledger")


def environment(home: Path, **more: str) -> dict[str, str]:
    """A bare environment: a home, free ports, and what the test adds."""
    ports = ("KAFKA_PORT", "KAFKA_CONTROLLER_PORT", "POSTGRES_PORT", "LOOKUP_PORT")
    return {
        "PATH": os.environ["PATH"],
        "KVLEDGER_HOME": str(home),
        **{f"KVLEDGER_{name}": "0" for name in ports},
        **more,
    }


def kvledger(
    *arguments: str, home: Path, folder: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `kvledger ARGUMENTS` to its end, within two minutes; `env` is added to its environment."""
    return subprocess.run(
        [*KVLEDGER, *arguments],
        env=environment(home, **(env or {})),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def failure(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a failed command ends with; there is no traceback."""
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr, done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("kvledger: "), done.stderr
    return line
