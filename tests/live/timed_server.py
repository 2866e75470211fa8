"""vLLM's own server, with the time of each of its steps written to the file that STEP_TIMES names.

A step's time is from the end of the one before it to its own end while there is work in between, so whatever an
agent does between two steps is in it. An entry is three doubles in seconds: the monotonic clock at its end, the
step's time, and how long of that the engine's thread, or a worker's, was ready and the machine gave it no
processor, whichever was longer. Runs in the engine's virtual environment: the standard library and vLLM only.
"""

from __future__ import annotations

import os
import runpy
import struct
import time
from typing import Any

from vllm.v1.engine import core  # type: ignore[import-not-found,unused-ignore]

_step = core.EngineCoreProc._process_engine_step
_ended: dict[str, float] = {}
_waited: list[float] = []
_threads: list[str] = []


def waited_s() -> list[float]:
    """How long the engine's thread and each worker's have ever been ready to run without a processor; nothing
    where the system doesn't say."""
    waited: list[float] = []
    try:
        if not _threads:
            with open("/proc/thread-self/children") as file:
                _threads.extend(["thread-self", *file.read().split()])
        for thread in _threads:
            with open(f"/proc/{thread}/schedstat") as file:
                waited.append(int(file.read().split()[1]) / 1e9)
    except OSError:
        return []
    return waited


def timed(self: Any) -> Any:
    began_s = _ended.get("at")
    answer = _step(self)
    now_s = time.perf_counter()
    if began_s is not None:
        with open(os.environ["STEP_TIMES"], "ab") as file:
            longest_s = max((now - then for now, then in zip(waited_s(), _waited, strict=False)), default=0.0)
            file.write(struct.pack("<ddd", now_s, now_s - began_s, longest_s))
    # What follows an idle engine is the wait for work, and no step's time.
    _ended.clear()
    if self.has_work():
        _ended["at"], _waited[:] = time.perf_counter(), waited_s()
    return answer


core.EngineCoreProc._process_engine_step = timed

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
