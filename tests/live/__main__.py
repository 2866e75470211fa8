"""`make live-vllm`: real vLLM engines on this machine's CPU, and after each of many things the index against them.

An engine with the agent in it is compared block by block with its pool, one that nobody has touched with its hit
counters. Ends with code 1 if anything differed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.live.row import HEAD, Row, line, totals
from tests.live.setups import SETUPS, Place, go


def main() -> int:
    parser = argparse.ArgumentParser(prog="make live-vllm", description=__doc__)
    parser.add_argument(
        "--venv", type=Path, required=True, help="the virtual environment with vLLM (.ci/vllm)"
    )
    names = [setup.name for setup in SETUPS]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="ENGINE", help=f"only these: {', '.join(names)}"
    )
    scenarios = sorted(set().union(*(setup.names() for setup in SETUPS)))
    parser.add_argument(
        "--scenario",
        action="append",
        choices=scenarios,
        metavar="NAME",
        help=f"only these, of the engines that have them: {', '.join(scenarios)}",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON document at the end instead of the table"
    )
    arguments = parser.parse_args()
    python = (arguments.venv / "bin" / "python").absolute()
    began_s = time.monotonic()
    rows: list[Row] = []
    whole = False

    def say(row: Row) -> None:
        rows.append(row)
        print(row.text(), file=sys.stderr if arguments.json else sys.stdout, flush=True)

    # Sockets have short names only.
    with tempfile.TemporaryDirectory(prefix="kvl-live-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if not arguments.json:
            print(line(HEAD), flush=True)
        try:
            go(Place(python, folder, say), arguments.only or (), arguments.scenario or ())
            whole = True
        finally:
            differences = sum(row.differences for row in rows)
            if differences or not whole:
                keep = Path(tempfile.mkdtemp(prefix="kvl-live-logs-"))
                for log in folder.glob("*.log"):
                    (keep / log.name).write_bytes(log.read_bytes())
                print(f"the engines' and bridges' logs are in {keep}", file=sys.stderr, flush=True)
    report(rows, time.monotonic() - began_s, as_json=arguments.json)
    return 1 if differences else 0


def report(rows: Sequence[Row], seconds: float, *, as_json: bool) -> None:
    """The sums, by engine and of all."""
    by_engine = totals(rows)
    compared = sum(row.compared for row in rows)
    differences = sum(row.differences for row in rows)
    if as_json:
        sums = {"compared": compared, "differences": differences, "seconds": round(seconds)}
        document = {"rows": [row.document() for row in rows], "engines": by_engine, **sums}
        print(json.dumps(document, indent=1))
        return
    print()
    for engine, one in by_engine.items():
        print(
            line((engine, f"{one['scenarios']} rows", one["compared"], one["differences"], "", "")).rstrip()
        )
    print(f"{compared} blocks compared, {differences} differences, {seconds / 60:.0f} minutes")


if __name__ == "__main__":
    sys.exit(main())
