"""Scene: a record never reaches the log. Its worker is left out until a snapshot has repaired the stream."""

from __future__ import annotations

from kvledger.demonstration.cast import Cast, SceneError

REPAIR_AFTER_S = 1.0


async def play(cast: Cast, tenant: str) -> None:
    """Drops one record of a worker and watches what the service says of it. Raises SceneError."""
    stage, fleet = cast.stage, cast.fleet
    worker = fleet.workers[-1]
    hook = worker.hook
    assert hook is not None
    stage.scene(
        "A record is lost",
        f"One record of {worker.name} is dropped on its way, as by a full buffer. Its number is burnt, so every"
        " reader sees the hole.",
    )
    prompt = cast.prompt(tenant)
    await cast.serve(worker, prompt)
    await cast.visible(prompt, worker)
    dropped = hook.dropped
    since_ns = fleet.truth.now_ns()
    fleet.lose_records(worker, 1, repair_after_s=REPAIR_AFTER_S)
    try:
        await cast.serve(worker, cast.prompt(tenant))
        await cast.serve(worker, cast.prompt(tenant))
        await cast.watch(
            prompt,
            worker,
            lambda what: what.endswith("reason gap"),
            since_ns=since_ns,
            shown=stage.moment,
        )
        await cast.watch(
            prompt,
            worker,
            lambda what: what.startswith("credited with all"),
            since_ns=since_ns,
            shown=lambda at_ms, what: None if what.endswith("reason gap") else stage.moment(at_ms, what),
        )
    finally:
        fleet.calm(worker)
    if hook.dropped == dropped:
        raise SceneError("no record was lost")
    stage.say(f"Snapshots that {worker.name} has written so far: {hook.repair.written}.")
