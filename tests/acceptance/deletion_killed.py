"""Every step of a deletion that lasts: whoever takes it is killed there, begins again, and an audit judges.

    python -m tests.acceptance.deletion_killed [WORD]...

With words only the steps that hold one of them. A stack of its own is started and stopped. Ends with 1 if a verdict
was unsound, a request was doubled or lost, or the deletion wasn't proven in the end.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import pytest

from kvledger.stack.plan import Extent
from kvledger.stack.session import running_stack
from tests.support.killed_deletion import AUDITOR_STEPS, BRIDGE_STEPS, REPLICA_STEPS, one_step
from tests.support.simulation import prepared_log
from tests.support.stack import stack_settings


def main(words: list[str]) -> int:
    steps = [*REPLICA_STEPS, *BRIDGE_STEPS, *AUDITOR_STEPS]
    wanted = [step for step in steps if not words or any(word in step for word in words)]
    failed = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        running_stack(stack_settings(Path(folder) / "stack"), extent=Extent.SERVICES) as given,
    ):
        for number, step in enumerate(wanted):
            begun_s = time.monotonic()
            with pytest.MonkeyPatch.context() as patch:
                settings = prepared_log(patch, Path(folder) / f"home{number}", given.kafka, f"step{number}.")
                try:
                    told = " ".join(asyncio.run(one_step(settings, step)))
                except (AssertionError, TimeoutError) as error:
                    failed += 1
                    told = f"FAILED: {error}"
            print(f"{step:50} {time.monotonic() - begun_s:6.1f} s  {told}", flush=True)
    print(f"{len(wanted)} steps, {failed} failed", flush=True)
    return 1 if failed or not wanted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
