"""Deletions: a hit before, a miss after the ack, and what becomes of the other tenant's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.live.engine import BLOCK
from tests.live.run import Run


def deleted(run: Run) -> None:
    """Where single blocks go another tenant's is still a hit; a reset costs everybody theirs."""
    prompt = run.words(256)
    mine, other = (run.send(prompt, domain) for domain in ("acme", "beta"))
    row = run.row("a tenant deleted")
    hit = (len(prompt) - 1) // BLOCK * BLOCK
    before = run.again(mine)
    verdict = run.verdict(run.order("acme"))
    after, kept = run.again(mine), run.again(other)
    row.expect(before // BLOCK, hit // BLOCK)
    row.expect(after // BLOCK, 0, hit // BLOCK)
    row.expect(kept // BLOCK, hit // BLOCK if run.pools else 0, hit // BLOCK)
    row.note = f"hits before {before}, after {after}, other tenant {kept}; {verdict}"
    row.demand(verdict.startswith("PROVEN"), "not proven")
    run.finish(row)
    run.check("after it")


def deleted_while_running(run: Run) -> None:
    """The ack waits for a request that holds what is deleted; nothing that it stores later is ever a hit."""
    prompt, other = run.words(128), run.words(96)
    mine, kept = run.send(prompt, "beta"), run.send(other, "acme")
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run.send, prompt, "beta", outputs=600)
        run.busy()
        verdict = run.verdict(run.order("beta"))
        ended = running.done()
        running.result()
    run.engine.drained()
    row = run.row("a tenant deleted while it runs")
    seen = run.again(mine)
    row.expect(seen // BLOCK, 0, len(prompt) // BLOCK)
    if run.pools:
        row.expect(run.again(kept) // BLOCK, (len(other) - 1) // BLOCK)
    row.note = f"acked after its end: {ended}; hit afterwards {seen}; {verdict}"
    row.demand(verdict.startswith("PROVEN"), "not proven")
    row.demand(ended, "acked while it ran")
    run.finish(row)
    run.check("after it")


def deleted_without_a_route(run: Run) -> None:
    """An engine that offers nothing: the order is refused by name, its copies are hidden, no proof is claimed."""
    prompt = run.words(256)
    mine, other = (run.send(prompt, domain) for domain in ("acme", "beta"))
    number = run.order("acme")
    verdict = run.verdict(number, wait_s=20)
    row = run.row("a tenant deleted, no reset route")
    holders = run.index.order_standing(number)["holders"]
    refusals = {str(one["refused"]) for one in holders if one["worker"] == run.engine.name}
    hidden = run.standing(mine)
    row.basis.add(hidden.basis or hidden.why)
    row.expect(hidden.blocks, 0, len(prompt) // BLOCK)
    kept = run.compare_hit(row, other)
    seen = run.again(mine)
    row.note = (
        f"refused {', '.join(sorted(refusals))}; hidden, the engine hits {seen}; other {kept}; {verdict}"
    )
    row.demand(refusals == {"no_delete_path"}, "not refused by its name")
    row.demand(not verdict.startswith("PROVEN"), "claimed a proof")
    run.finish(row)
