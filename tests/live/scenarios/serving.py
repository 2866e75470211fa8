"""What users do: shared prefixes, repeats, decoding, tenants, more than the pool holds, going away."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.live.prompt import Prompt
from tests.live.run import Run


def shared_prefixes(run: Run) -> None:
    first = run.words(96)
    for length in (33, 64, 96, 200):
        run.send([*first, *run.words(length)])
    run.send(run.words(16))
    run.check("shared prefixes")


def repeated(run: Run) -> None:
    aligned = run.words(128)
    for _ in range(3):
        run.send(aligned)
    run.check("a block-aligned prompt again and again")


def decoded(run: Run) -> None:
    run.send(run.words(70), outputs=150)
    run.check("decode")


def two_tenants(run: Run) -> None:
    prompt = run.words(160)
    for domain in ("acme", "beta", "acme"):
        run.send(prompt, domain)
    run.check("one prompt of two tenants")


def evicted_and_preempted(run: Run) -> None:
    before = run.engine.preemptions()
    prompts = [run.words(400) for _ in range(12)]
    with ThreadPoolExecutor(12) as threads:
        list(threads.map(lambda prompt: run.send(prompt, outputs=120), prompts))
    run.engine.drained()
    row = run.row("eviction and preemption")
    run.compare(row)
    preempted = run.engine.preemptions() - before
    row.note = f"{preempted} preemptions"
    row.demand(preempted > 0, "nothing was preempted")
    run.finish(row)


def aborted(run: Run) -> None:
    prompt = run.words(100)
    run.prompts[Prompt(tuple(prompt))] = None
    run.engine.abort(prompt, 0.5)
    run.check("a request whose caller went away")
