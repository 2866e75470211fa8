"""Adapters: several in one stream, the base model beside them, and one that becomes another under its name."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tests.live.engine import BLOCK
from tests.live.prompt import Prompt
from tests.live.row import Row
from tests.live.run import Run
from tests.live.tiny_model import write_adapter

NOTICED_S = 20.0
"""`attach` looks at the engine every three seconds."""
NAMES = ("ad1", "ad2")


def many_adapters(run: Run) -> None:
    """One prompt for the base model, for each adapter, and for a tenant with an adapter: four, of which none is
    another's."""
    prompt = run.words(160)
    row = run.row("the base model, two adapters, one with a tenant")
    for adapter, domain in ((None, "default"), ("ad1", "default"), ("ad2", "default"), ("ad1", "acme")):
        one = Prompt(tuple(prompt), domain, adapter)
        row.expect(run.compare_hit(row, one) // BLOCK, 0, len(prompt) // BLOCK)
        run.send(prompt, domain, adapter=adapter)
    for adapter in NAMES:
        run.send([*prompt[:64], *run.words(60)], adapter=adapter, outputs=40)
    run.compare(row)
    run.finish(row)


def loaded_from_elsewhere(run: Run) -> None:
    """The engine's hashes have the path in them, so it misses what it computed with the former one, too."""
    other = write_adapter(run.folder / f"{run.engine.name}-other", seed=31)
    old = run.forget("ad2")
    row = run.row("an adapter loaded under its name, other path")
    row.note = _load(run, "ad2", str(other))
    _void(run, row, old)
    for prompt in old:
        seen = run.compare_hit(row, prompt)
        row.demand(prompt != old[0] or seen == 0, f"the first one is a hit of {seen} tokens")
        run.prompts[prompt] = None
    run.compare(row)
    run.finish(row)


def loaded_in_place(run: Run) -> None:
    """The engine goes on using what it computed with the former weights, and says so in its log. Nothing of that is
    credited, nor what is computed on top of it."""
    old = run.forget("ad1")
    path = run.folder / f"{run.engine.name}-ad1"
    write_adapter(path, seed=41)
    row = run.row("an adapter loaded under its name, same path")
    row.note = _load(run, "ad1", str(path))
    _void(run, row, old)
    stale = 0
    for prompt in old[:2]:
        stale += run.again(prompt)
        longer = prompt._replace(tokens=(*prompt.tokens, *run.words(70)))
        run.again(longer)
        found = run.known(longer)
        row.basis.add(found.basis or found.why)
        row.expect(found.blocks, 0, len(longer.tokens) // BLOCK)
    row.note += f"; the engine still hits {stale} stale tokens, none is credited"
    run.send(run.words(200), adapter="ad1", outputs=40)
    run.compare(row)
    run.finish(row)


def _load(run: Run, name: str, path: str) -> str:
    done = run.engine.order("/v1/load_lora_adapter", lora_name=name, lora_path=path, load_inplace=True)
    return f"load {done}"


def _void(run: Run, row: Row, old: Sequence[Prompt]) -> None:
    """Waits until nothing of the former adapter is credited."""
    began_s = time.monotonic()
    left = list(old)
    while left and time.monotonic() < began_s + NOTICED_S:
        found = run.known(left[-1])
        if not found.blocks:
            left.pop()
    row.demand(not left, "the former adapter is still credited")
    row.compared += sum(len(prompt.tokens) // BLOCK for prompt in old)
    row.note += f", void after {time.monotonic() - began_s:.1f} s"
