"""Imported by Python as it starts when this folder is on its path: makes the process' wall clock movable.

Only simulations put it there. The offset is a number of nanoseconds in a file named like the command.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time


def _install() -> None:
    folder = os.environ.get("SIMULATED_CLOCKS", "")
    # `python -m kvledger NAME`: nothing else is to be moved.
    words = sys.orig_argv[1:]
    if not folder or words[:2] != ["-m", "kvledger"] or len(words) < 3:
        return
    try:
        with open(os.path.join(folder, words[2]), "rb") as file:
            shared = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
    except (OSError, ValueError):
        return
    unpack = struct.Struct("<q").unpack_from
    true_ns = time.time_ns

    def time_ns() -> int:
        offset: int = unpack(shared)[0]
        return true_ns() + offset

    def seconds() -> float:
        return time_ns() / 1e9

    time.time_ns = time_ns
    time.time = seconds  # noqa: TID251 - the very function that is moved


_install()
