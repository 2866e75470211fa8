"""Runs the steps between services and processes: `python -m kvledger.stack.step`.

The addresses are in the environment. A child of the supervisor, so that its weight goes when it is done
and it can be stopped at any moment.
The last line it writes is the reason when it fails.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from events.errors import KvledgerError
from kvledger.stack.plan import STEPS
from kvledger.stack.state import Endpoints


def main() -> int:
    """Exit code 0 when every step is done, 1 at the first that isn't."""
    at = Endpoints(
        home=Path(os.environ["KVLEDGER_HOME"]),
        kafka=os.environ["KVLEDGER_KAFKA"],
        database_url=os.environ["KVLEDGER_DATABASE_URL"],
    )
    for step in STEPS:
        if find_spec(step.module) is None:
            continue
        sys.stderr.write(f"{step.name}\n")
        try:
            getattr(importlib.import_module(step.module), step.function)(*step.arguments(at))
        except KvledgerError as error:
            sys.stderr.write(f"{step.name}: {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
