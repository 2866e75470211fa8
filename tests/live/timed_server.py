"""vLLM's own server, with the time of each of its steps written to the file that STEP_TIMES names.

A step's time is from the end of the one before it to its own end while there is work in between, so whatever an
agent does between two steps is in it. Runs in the engine's virtual environment: the standard library and vLLM only.
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


def timed(self: Any) -> Any:
    began_s = _ended.get("at")
    answer = _step(self)
    now_s = time.perf_counter()
    if began_s is not None:
        with open(os.environ["STEP_TIMES"], "ab") as file:
            file.write(struct.pack("<dd", now_s, now_s - began_s))
    # What follows an idle engine is the wait for work, and no step's time.
    _ended.clear()
    if self.has_work():
        _ended["at"] = time.perf_counter()
    return answer


core.EngineCoreProc._process_engine_step = timed

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
