"""What operators do to a cache: resets, sleep, pause."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.live.run import Run


def reset_while_idle(run: Run) -> None:
    run.engine.drained()
    done = run.engine.reset()
    run.told()
    run.check("reset while idle", note=f"reset {'done' if done else 'refused'}")


def reset_while_busy(run: Run) -> None:
    run.send(run.words(200))
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run.send, run.words(64), outputs=400)
        run.busy()
        done = run.engine.reset()
        running.result()
    run.engine.drained()
    run.check("reset while busy", note=f"reset {'done' if done else 'refused'}")


def slept(run: Run) -> None:
    """Both levels empty the cache; with an agent that is known while the engine sleeps."""
    for level in (1, 2):
        run.send(run.words(200))
        note = f"sleep {run.engine.order(f'/sleep?level={level}')}"
        if run.pools:
            run.check(f"asleep, level {level}", note=note)
        note += f", wake {run.engine.order('/wake_up')}"
        run.told()
        run.check(f"awake after level {level}", note=note)


def paused(run: Run) -> None:
    """A pause empties the cache, one that keeps its requests doesn't."""
    run.send(run.words(200))
    note = f"pause {run.engine.order('/pause')}, resume {run.engine.order('/resume')}"
    run.told()
    run.check("paused and resumed", note=note)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run.send, run.words(200), outputs=200)
        run.busy()
        note = f"pause {run.engine.order('/pause?mode=keep')}"
        if run.pools:
            run.check("paused while a request runs", note=note)
        note += f", resume {run.engine.order('/resume')}"
        running.result()
    run.engine.drained()
    run.check("resumed with it", note=note)
