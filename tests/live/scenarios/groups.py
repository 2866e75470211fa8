"""A hybrid model: what every attention group can serve is what is predicted."""

from __future__ import annotations

from tests.live.engine import BLOCK
from tests.live.prompt import Prompt
from tests.live.run import Run


def window_lacks_prefix(run: Run) -> None:
    """The full group has the shared part, the sliding one has only the ends: the engine has no hit there, and none
    is predicted. Where the prompt has ended before, it has one."""
    first = run.words(300)
    row = run.row("the sliding group lacks the prefix")
    run.send(first)
    other = Prompt((*first[:200], *run.words(100)))
    lacked = run.compare_hit(row, other)
    run.prompts[other] = None
    row.note = f"{200 // BLOCK * BLOCK} of 300 tokens shared: hit {lacked}"
    row.demand(lacked == 0, "so the scenario shows nothing")
    ended = run.send(first[:200])
    longer = Prompt((*ended.tokens, *run.words(80)))
    found = run.compare_hit(row, longer)
    run.prompts[longer] = None
    row.note += f", once a prompt ended there {found}"
    row.demand(found > 0, "the ends aren't there")
    run.finish(row)


def hits_agree(run: Run) -> None:
    """Beside the pool, if it can be seen: what the engine delivers, of prompts that end at and beside a block's end,
    and of such that go on from them."""
    row = run.row("predicted and delivered hits")
    sent = [run.send(run.words(length)) for length in (32, 33, 64, 65, 96, 128, 200, 257)]
    sent += [run.send([*prompt.tokens, *run.words(50)]) for prompt in sent[3:6]]
    seen = sum(run.compare_hit(row, prompt) for prompt in sent)
    row.note = f"{seen} tokens"
    row.demand(seen > 0, "the scenario shows nothing")
    run.finish(row)
