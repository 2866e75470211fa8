"""What the agent brings into an engine's process."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

LOADED = """
import sys
before = set(sys.modules)
import events.hooks.agent
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def test_the_agent_loads_msgspec_and_the_standard_library_and_nothing_of_the_log() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    found = {name for name in done.stdout.split() if name not in sys.stdlib_module_names}
    assert found <= {"events", "msgspec", "typing_extensions"}, found


def test_vllm_finds_the_agent_by_its_entry_point() -> None:
    (found,) = [one for one in entry_points(group="vllm.general_plugins") if one.name == "kvledger"]
    assert found.value == "events.hooks.agent:register"
    assert callable(found.load())
