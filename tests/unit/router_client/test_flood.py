"""A view's memory has a bound, whatever is written to the log: a process of its own is flooded and weighed."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

MIB = 1 << 20


def test_a_flooded_view_stays_within_its_bounds_and_says_what_it_gave_up() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.flood", "3"],
        capture_output=True,
        text=True,
        timeout=400,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    first, *later = found["after"]
    assert first - found["before"] < 40 * MIB
    assert max(later) - first < 8 * MIB, found["after"]
    for kind, (held, bound) in found["held"].items():
        assert held <= bound, kind
    assert found["blocks"] <= 2 * 4_000
    assert found["shed"] > 0
    assert found["strangers_forgotten"] > 0
    assert {"pulses", "quotas", "profiles_seen"} <= found["forgotten"].keys()
