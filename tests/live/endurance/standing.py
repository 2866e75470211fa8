"""The index against an engine at rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from events.hooks.agent_client import Residents
from events.hooks.engine_event import EngineHash
from tests.live.endurance.load import Load
from tests.live.endurance.wire_history import WireHistory
from tests.live.engine import BLOCK, LiveEngine
from tests.live.index import Found, Index
from tests.live.truth import Pool, resident

WHOLE_WITHIN_S = 90.0
HIT_PROMPTS = 30


@dataclass(slots=True)
class Standing:
    """`compared` blocks of the newest prompts, of which `differences` were otherwise than the engine's own word,
    `over` of them credited and not there. What was there and not credited is `floor` if the answer wasn't
    `complete`, or (`unflagged`) if the index, asked why, says that it is in doubt of the next block. `unknown` are
    blocks of prompts that the index said nothing of. `settled_s`: how long it took to be so. `copies` and `held`:
    what the index counts for the engine, and what the engine holds."""

    engine: str
    at_s: float
    compared: int = 0
    differences: int = 0
    over: int = 0
    floor: int = 0
    unflagged: int = 0
    unknown: int = 0
    settled_s: float = 0.0
    copies: int = 0
    held: int = 0
    truth: list[str] = field(default_factory=list)
    basis: set[str] = field(default_factory=set)

    @property
    def equal(self) -> bool:
        return not self.differences and not self.unknown and not self.floor

    def tally(self, found: Found, right: int, in_doubt: Callable[[], bool]) -> None:
        """An answer, and how many blocks are there. `in_doubt`: whether the index says so of the next block."""
        over, under = max(0, found.blocks - right), max(0, right - found.blocks)
        self.over += over
        self.differences += over
        if under and (not found.complete or in_doubt()):
            self.floor += under
            self.unflagged += under if found.complete else 0
        else:
            self.differences += under


def stand(
    engine: LiveEngine,
    index: Index,
    load: Load,
    history: WireHistory,
    salts: dict[str, str | None],
    deleted: set[str],
) -> Standing:
    """Compares, and again until it is equal or a minute and a half has passed. The load is paused. What is
    credited wrongly is a difference at once. Of `deleted` domains nothing need be credited."""
    began_s = time.monotonic()
    while True:
        standing = _by_what_was_said(engine, index, load, history, salts, deleted)
        standing.at_s, standing.settled_s = began_s, time.monotonic() - began_s
        # Without an agent nobody can look, so a floor may stay one.
        enough = standing.equal or (
            engine.agent is None and not standing.differences and not standing.unknown
        )
        if enough or standing.over or standing.settled_s > WHOLE_WITHIN_S:
            break
        time.sleep(0.5)
    if engine.agent is None and enough:
        _by_hits(engine, index, load, salts, deleted, standing)
    return standing


def _by_what_was_said(
    engine: LiveEngine,
    index: Index,
    load: Load,
    history: WireHistory,
    salts: dict[str, str | None],
    deleted: set[str],
) -> Standing:
    """By the pool where an agent shows it, else by the engine's own events."""
    since_s = time.monotonic()
    standing = Standing(engine.name, since_s)
    heard = history.history.held()
    if engine.agent is not None:
        pool = Pool(engine.agent).look()
        standing.truth.append("pool")
        # What was heard of the engine is held against the pool, too: it judges all answers under load.
        standing.differences += len(heard ^ set(pool.copies.get(0, {})))
    else:
        pool = Residents(0, {0: {EngineHash(one): 1 for one in heard}}, 0)
        standing.truth.append("events")
    standing.held = len(pool.copies.get(0, {}))
    for tokens, domain in load.recent():
        chain = history.chain(tokens, salts[domain])
        found = index.lookup(engine.name, tokens, domain, since_s)
        standing.compared += len(tokens) // BLOCK
        standing.basis.add(found.basis or found.why)
        if found.basis is None:
            standing.unknown += len(tokens) // BLOCK
            # The others would be waited for as long, and say the same.
            return standing
        right = resident(chain, pool)
        # What was deleted is hidden until every holder has acked.
        hidden = domain in deleted and found.blocks == 0
        standing.tally(
            found, found.blocks if hidden else right, partial(index.in_doubt, engine.name, tokens, domain)
        )
    standing.copies = index.copies(engine.name)
    standing.compared += standing.held
    standing.differences += abs(standing.copies - standing.held)
    return standing


def _by_hits(
    engine: LiveEngine,
    index: Index,
    load: Load,
    salts: dict[str, str | None],
    deleted: set[str],
    standing: Standing,
) -> None:
    """Sends the newest prompts again: what is a hit must have been predicted."""
    standing.truth.append("hits")
    prompts = [prompt for prompt in load.recent() if prompt[1] not in deleted][-HIT_PROMPTS:]
    for tokens, domain in prompts:
        since_s = time.monotonic()
        found = index.lookup(engine.name, tokens, domain, since_s)
        # Asked before the prompt is sent, as that settles it.
        in_doubt = index.in_doubt(engine.name, tokens, domain)
        seen = engine.delivered(tokens, salt=salts[domain]) // BLOCK
        standing.compared += len(tokens) // BLOCK
        if found.basis is None:
            standing.unknown += len(tokens) // BLOCK
        else:
            # The last token is computed in any case, so its block is no hit.
            usable = min(found.blocks, (len(tokens) - 1) // BLOCK)
            standing.tally(replace(found, blocks=usable), seen, partial(bool, in_doubt))
