"""`make live-vllm-hour`: two real vLLM engines under load, bridges and broker killed every few minutes.

Ends with code 1 if an engine stalled, a request failed, an answer was wrong, the index is not what an engine holds,
or a deletion was called proven that wasn't.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from kvledger.command.soak import seconds
from tests.live.endurance.run import Plan, Run, faults


def show(document: dict[str, Any]) -> None:
    """What is worth a look, in lines."""
    print(
        "\nENGINE         PERIOD   REQUESTS  p50 ms   p99 ms      max  STEPS p50 ms   p99 ms      max  LONGEST WITHOUT"
    )
    for name, one in document["engines"].items():
        for period in ("control", "calm", "struck"):
            latency, steps = one[period]["latency"], one[period]["steps"]
            cells = [f"{latency[key]:8.1f}" for key in ("p50_ms", "p99_ms", "max_ms")]
            cells += [f"{steps[key]:8.1f}" for key in ("p50_ms", "p99_ms", "max_ms")]
            still = one[period]["without_a_step_while_asked"]["max_ms"]
            print(f"{name:<14} {period:<8} {latency['count']:>8} {' '.join(cells)} {still:>16.1f}")
    print("\n    AT  AGAIN AFTER  STRIKE")
    for one in document["strikes"]:
        print(f"{one['at_s']:6.0f}  {one['answered_again_after_s'] or 'never':>11}  {one['what']}")
    compared = sum(one["compared"] for one in document["standings"])
    differences = sum(one["differences"] for one in document["standings"])
    unknown = sum(one["unknown"] for one in document["standings"])
    floor = sum(one["floor"] for one in document["standings"])
    print(
        f"\nat rest: {compared} blocks compared, {differences} differences, {floor} in doubt, {unknown} unknown"
    )
    answers = document["answers"]
    print(f"under load: {answers['judged']} answers judged, {len(answers['wrong'])} wrong")
    for one in document["deletions"]:
        print(f"deletion of {one['tenant']}: {one['verdict']} {', '.join(one['reasons'])}")
    print("\n".join(document["faults"]) or "no faults")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make live-vllm-hour", description=__doc__)
    parser.add_argument(
        "--venv", type=Path, required=True, help="the virtual environment with vLLM (.ci/vllm)"
    )
    parser.add_argument("--duration", default="60m", help="90s, 60m or 1h; default 60m")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second for each engine")
    parser.add_argument("--rest", type=float, default=600.0, help="seconds between two comparisons at rest")
    parser.add_argument("--keep", action="store_true", help="keep logs and step times also without a fault")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    duration_s = seconds(arguments.duration)
    plan = Plan(
        duration_s=duration_s,
        seed=arguments.seed,
        control_s=min(240.0, duration_s / 6),
        rest_s=arguments.rest,
        rate=arguments.rate,
    )
    # Sockets have short names only.
    folder = Path(tempfile.mkdtemp(prefix="kvl-hour-"))
    document: dict[str, Any] = Run(plan, (arguments.venv / "bin" / "python").absolute(), folder).go()
    document["faults"] = faults(document)
    if arguments.keep or document["faults"]:
        (folder / "report.json").write_text(json.dumps(document, indent=1))
        print(f"logs, step times and bundles are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        print(json.dumps(document, indent=1))
    else:
        show(document)
    return 1 if document["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
