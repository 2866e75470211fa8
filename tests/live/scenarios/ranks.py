"""Data parallelism: each rank is a stream of its own, with a pool of its own."""

from __future__ import annotations

from tests.live.engine import BLOCK
from tests.live.run import Run


def each_rank(run: Run) -> None:
    """What both were sent, what one of them was, and what the engine placed where it liked."""
    both = run.words(130)
    for rank in range(run.engine.ranks):
        run.send(both, rank=rank)
        run.send([*both[:64], *run.words(100)], rank=rank, outputs=40)
        run.send(run.words(200), rank=rank)
    row = run.row("each rank its own prompts")
    run.compare(row)
    for rank in range(run.engine.ranks):
        lone = run.send(run.words(150), rank=rank)
        elsewhere = lone._replace(rank=1 - rank)
        row.expect(run.compare_hit(row, elsewhere) // BLOCK, 0, len(lone.tokens) // BLOCK)
    run.finish(row)
    run.check("after it")


def deleted_on_ranks(run: Run) -> None:
    """Every rank acks."""
    prompt = run.words(256)
    hit = (len(prompt) - 1) // BLOCK
    mine = [run.send(prompt, "acme", rank=rank) for rank in range(run.engine.ranks)]
    kept = [run.send(prompt, "beta", rank=rank) for rank in range(run.engine.ranks)]
    row = run.row("a tenant deleted on each rank")
    before = [run.again(one) for one in mine]
    number = run.order("acme")
    row.note = run.acked(number)
    after, other = [run.again(one) for one in mine], [run.again(one) for one in kept]
    for rank in range(run.engine.ranks):
        row.expect(before[rank] // BLOCK, hit)
        row.expect(after[rank] // BLOCK, 0, hit)
        row.expect(other[rank] // BLOCK, hit if run.pools else 0, hit)
    row.demand(row.note == "discharged", "not acked by every rank")
    row.note += f"; hits before {before}, after {after}, other tenant {other}"
    verdict = run.verdict(number)
    row.note += f"; {verdict}"
    row.demand(verdict.startswith("PROVEN"), "not proven")
    run.finish(row)
    run.check("after it")
