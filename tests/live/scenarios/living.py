"""Ends and starts of engines and bridges."""

from __future__ import annotations

import signal
import time

from tests.live.engine import BLOCK
from tests.live.run import Run

ATTESTED_S = 30.0


def bridge_killed(run: Run) -> None:
    run.unbridge(signal.SIGKILL)
    run.send(run.words(150))
    run.bridge()
    run.check("the bridge killed and started again")


def bridge_stopped(run: Run) -> None:
    run.unbridge(signal.SIGTERM)
    run.send(run.words(150))
    run.bridge()
    run.check("the bridge stopped and started again")


def ended_by_sigterm(run: Run) -> None:
    _restart(run, signal.SIGTERM)


def ended_by_sigkill(run: Run) -> None:
    _restart(run, signal.SIGKILL)


def ended_unseen(run: Run) -> None:
    """Nobody listens while the engine ends, starts and serves."""
    run.unbridge(signal.SIGKILL)
    run.engine.restart(signal.SIGKILL)
    for prompt in list(run.prompts)[-2:]:
        run.again(prompt)
    run.send(run.words(100))
    run.bridge()
    run.check("the engine ended while its bridge was away")


def gone(run: Run) -> None:
    """The last of every engine with an agent: its bridge attests the end of its process. Nothing is credited then,
    and an order owes nothing to the life that has ended."""
    ranks = range(run.engine.ranks)
    epochs = {run.index.stream(run.engine.name, rank)["epoch"] for rank in ranks}
    run.engine.stop(signal.SIGKILL)
    number = run.order("beta")
    row = run.row("ended for good", note="its end is attested")
    deadline_s = time.monotonic() + ATTESTED_S
    while (left := _owing(run, number) & epochs) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    row.demand(not left, "but not of every rank")
    for prompt in list(run.prompts)[-5:]:
        found = run.standing(prompt)
        row.basis.add(found.basis or found.why)
        row.expect(found.blocks, 0, len(prompt.tokens) // BLOCK)
    run.finish(row)


def _owing(run: Run, number: int) -> set[str]:
    """Epochs of engine lives whose end nobody has attested."""
    return {str(one["epoch"]) for one in run.index.order_standing(number)["holders"]}


def _restart(run: Run, number: signal.Signals) -> None:
    run.engine.restart(number)
    # Nothing of the former life may be credited before the new one has said a word.
    run.check(f"{number.name} and start", absent=True)
    for prompt in list(run.prompts)[-3:]:
        run.again(prompt)
    run.check(f"served again after {number.name}")
