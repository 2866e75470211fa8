"""Runs `kvledger` where there is no network: in an empty network namespace where the system grants one, and always
under a hook of the interpreter that lets no socket be made that could reach out, by whatever module."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.command import environment

PROGRAM = """
import json, sys

def closed(event, arguments):
    if event == "socket.__new__" and arguments[1] == 1:
        return  # AF_UNIX: the pair by which an event loop wakes itself; connecting one is refused below
    if event.startswith("socket.") or event in ("urllib.Request", "http.client.connect"):
        sys.stderr.write(f"no network here: {event}\\n")  # who asked may take the error for an absent broker's
        raise PermissionError(f"no network here: {event}")

sys.addaudithook(closed)
import kvledger.cli
sys.argv = ["kvledger", *sys.argv[1:]]
try:
    kvledger.cli.main()
finally:
    names = sorted({name.partition(".")[0] for name in sys.modules})
    sys.stderr.write("\\nmodules " + json.dumps(names) + "\\n")
"""
REACHES_OUT = (
    "import socket; socket.create_connection(('127.0.0.1', int(__import__('sys').argv[1])), 2).close()"
)


@dataclass(frozen=True)
class Offline:
    """What a command did. `modules` are the packages that it had loaded in the end."""

    code: int
    out: str
    error: str
    modules: frozenset[str]


@cache
def isolation() -> tuple[str, ...]:
    """The prefix that puts a command into an empty network namespace; empty where the system grants none."""
    prefix = ("unshare", "--map-root-user", "--net")
    if shutil.which(prefix[0]) is None:
        return ()
    return (
        prefix if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0 else ()
    )


def without_network(*arguments: str, home: Path) -> Offline:
    done = subprocess.run(
        [*isolation(), sys.executable, "-c", PROGRAM, *arguments],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    before, _, rest = done.stderr.rpartition("\nmodules ")
    names, _, behind = rest.partition("\n")
    return Offline(done.returncode, done.stdout, before + behind, frozenset(json.loads(names)))


def reaches(port: int) -> bool:
    """Whether a program under the same isolation can reach a listening port of this machine."""
    done = subprocess.run(
        [*isolation(), sys.executable, "-c", REACHES_OUT, str(port)],
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode == 0
