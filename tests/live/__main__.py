"""`make live-vllm`: a real vLLM on this machine's CPU, and after each of many things the index against the engine.

One engine with the agent in it (its block pool is the truth), then one that nobody has touched (its hit counters
are). Ends with code 1 if anything differed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.live.engine import LiveEngine
from tests.live.index import Index
from tests.live.scenario import Row, Run
from tests.live.tiny_model import write_model

WIDTHS = (14, 40, 8, 11, 20)


def line(cells: Sequence[object]) -> str:
    *firsts, last = cells
    return "  ".join(f"{cell!s:<{width}}" for cell, width in zip(firsts, WIDTHS, strict=True)) + f"  {last}"


def say(row: Row) -> None:
    basis = ", ".join(sorted(row.basis))
    print(line((row.engine, row.scenario, row.compared, row.differences, basis, row.note)), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make live-vllm", description=__doc__)
    parser.add_argument(
        "--venv", type=Path, required=True, help="the virtual environment with vLLM (.ci/vllm)"
    )
    parser.add_argument("--only", choices=("agent", "bridge"), help="one of the two engines")
    parser.add_argument("--scenario", action="append", help="only these, by the names of their methods")
    arguments = parser.parse_args()
    python = (arguments.venv / "bin" / "python").absolute()
    rows: list[Row] = []
    # Sockets have short names only.
    with tempfile.TemporaryDirectory(prefix="kvl-live-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        model = write_model(folder / "model")
        print(line(("ENGINE", "SCENARIO", "BLOCKS", "DIFFERENCES", "BASIS", "NOTE")), flush=True)
        whole = False
        try:
            with Index(folder / "home") as index:
                for kind in ("agent", "bridge"):
                    if arguments.only in (None, kind):
                        rows += run(kind, python, model, folder, index, arguments.scenario)
            whole = True
        finally:
            differences = sum(row.differences for row in rows)
            if differences or not whole:
                keep = Path(tempfile.mkdtemp(prefix="kvl-live-logs-"))
                for log in folder.glob("*.log"):
                    (keep / log.name).write_bytes(log.read_bytes())
                print(f"the engines' and bridges' logs are in {keep}", flush=True)
        print(f"{sum(row.compared for row in rows)} blocks compared, {differences} differences")
    return 1 if differences else 0


def run(
    kind: str, python: Path, model: Path, folder: Path, index: Index, chosen: Sequence[str] | None
) -> list[Row]:
    agent = folder / "agent.sock" if kind == "agent" else None
    name = f"with-{kind}" if agent is not None else "bridge-alone"
    with LiveEngine(python, model, folder, name, agent=agent) as engine:
        scenarios = Run(engine, index, folder, say)
        try:
            index.bridge(engine, folder)
            if chosen:
                for one in chosen:
                    getattr(scenarios, one)()
            else:
                scenarios.all()
        finally:
            scenarios.close()
            index.unbridge_all()
        return scenarios.rows


if __name__ == "__main__":
    sys.exit(main())
