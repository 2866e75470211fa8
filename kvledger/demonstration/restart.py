"""Scene: a worker's engine dies. What it had is gone at once, and no answer says otherwise."""

from __future__ import annotations

import asyncio

from kvledger.demonstration.cast import Cast


async def play(cast: Cast, tenant: str) -> None:
    """Restarts a worker that has a prompt and watches what the service says of it. Raises SceneError."""
    stage, fleet = cast.stage, cast.fleet
    worker = fleet.workers[0]
    stage.scene(
        "A worker restarts",
        f"{worker.name} holds a prompt of {tenant}, then its engine dies and starts again, empty.",
    )
    prompt = cast.prompt(tenant)
    await cast.serve(worker, prompt)
    await cast.visible(prompt, worker)
    stage.say(f"  before      credited with all {len(prompt.keys)} blocks")
    since_ns = fleet.truth.now_ns()
    restarting = asyncio.get_running_loop().create_task(fleet.restart(worker))
    await cast.watch(
        prompt,
        worker,
        lambda what: restarting.done() and what.startswith("answered for"),
        since_ns=since_ns,
        shown=stage.moment,
    )
    life = await restarting
    stage.say(f"It reports as a new epoch of engine life {life}. The prompt is computed once more:")
    since_ns = fleet.truth.now_ns()
    await cast.serve(worker, prompt)
    await cast.watch(
        prompt,
        worker,
        lambda what: what.startswith("credited with all"),
        since_ns=since_ns,
        shown=stage.moment,
    )
