"""One reader at one point of a story: the real view, fed by a list of deliveries, and what it may say there."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import NamedTuple

from events.fold.registry import Registry
from events.signing import verify
from router_client.answer import answer
from router_client.problem import Problem
from router_client.query import Query, make_query
from router_client.view import LocalView
from router_client.wire import LookupRequest
from tests.model.events.scope_plot import DOMAIN, PROFILE_ID, RING, Held, Script

WALL_MS = 1_700_000_000_000
BLOCK_TOKENS = 16


class Delivery(NamedTuple):
    """`what`: control, next, lost, again, twin (after its genuine record), instead (of it) or garbled.
    `epoch` empty for control; `number` of the record that comes again."""

    what: str
    epoch: str = ""
    number: int = -1


class Lie(NamedTuple):
    """A credit that the truth doesn't allow, or, without a fault, one that is missing."""

    what: str
    path: tuple[Delivery, ...]
    detail: str


def queries(script: Script) -> list[tuple[tuple[bytes, ...], Query, Query]]:
    """For each chain the question without a bound, and the one with."""
    made = []
    for chain in script.plot.chains:
        pair = []
        for bound in ({"consistency": "any"}, {"max_staleness_ms": 10**9}):
            ids = [block.hex() for block in chain]
            fields = {"profile": PROFILE_ID, "block_ids": ids, "min_coverage": 0, **bound}
            query = make_query(LookupRequest.model_validate(fields, strict=False), DOMAIN)
            assert isinstance(query, Query)
            pair.append(query)
        made.append((chain, pair[0], pair[1]))
    return made


def leading(held: Held, chain: Sequence[bytes]) -> tuple[int, int]:
    """Leading blocks on the GPU, and on GPU or CPU."""
    gpu, both = held.get("gpu", frozenset()), held.get("gpu", frozenset()) | held.get("cpu", frozenset())
    first, second = (
        next((n for n, block in enumerate(chain) if block not in tier), len(chain)) for tier in (gpu, both)
    )
    return first, second


@dataclass
class World:
    """`replaced`: a stranger's record came in a genuine one's place. `split`: epochs of which two different
    records under one number were seen next to each other. `spoilt`: epochs with any fault at all."""

    script: Script
    view: LocalView = field(init=False)
    control: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    delivered: dict[str, set[int]] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    replaced: bool = False
    split: set[str] = field(default_factory=set)
    spoilt: set[str] = field(default_factory=set)
    offset: int = 0

    @classmethod
    def at(cls, script: Script, base: Registry, path: Sequence[Delivery]) -> World:
        world = cls(script)
        registry = replace(
            base, **{f.name: copy(getattr(base, f.name)) for f in fields(base) if f.name != "verify"}
        )
        world.view = LocalView("r", registry, RING, world.control_ns)
        for epoch in script.streams:
            world.positions[epoch], world.delivered[epoch], world.newest[epoch] = 0, set(), -1
        for delivery in path:
            world.deliver(delivery)
        return world

    def control_ns(self) -> int:
        """When the last fetch of kv.control that reached its end was begun."""
        waiting = self.script.control[self.control :]
        return waiting[0][2] - 1 if waiting else self.script.end_ns

    def deliver(self, delivery: Delivery) -> None:
        what, epoch, number = delivery
        if what == "control":
            value, signature, _ = self.script.control[self.control]
            registry = self.view.registry
            self.view.control_folded(*registry.fold(registry.next_offset, value, signature))
            self.control += 1
            return
        at = self.positions[epoch]
        if what == "again":
            self._record(self.script.streams[epoch][number].value)
        elif what == "twin":
            self._record(self.script.streams[epoch][number].twin)
            self.split.add(epoch)
            self.spoilt.add(epoch)
        else:
            sealed = self.script.streams[epoch][at]
            self.positions[epoch] = at + 1
            if what == "next":
                self.delivered[epoch].add(at)
                self.newest[epoch] = at
                self._record(sealed.value)
                return
            self.spoilt.add(epoch)
            if what == "instead":
                self.replaced = True
                self.newest[epoch] = -1
                self._record(sealed.twin)
            elif what == "garbled":
                self.newest[epoch] = -1
                self._record(sealed.garbled)

    def _record(self, value: bytes) -> None:
        self.view.apply_record(0, self.offset, value, 0)
        self.offset += 1

    def fingerprint(self) -> tuple[object, ...]:
        """Equal ones answer alike for ever, given the same deliveries."""
        streams = []
        for key, stream in sorted(self.view.streams.items()):
            state = stream.state
            streams.append(
                (
                    key,
                    (state.status, state.sticky, state.draining, state.next_seq, state.prev),
                    tuple((h.name, h.inventory, h.lost) for h in state.holders.values()),
                    tuple(sorted((w, tuple(sorted(t.items()))) for w, t in state.copies.items() if t)),
                    tuple(sorted(state.transfers.items())),
                    tuple(state.profiles),
                    None
                    if state.snapshot is None
                    else (state.snapshot.snapshot, tuple(sorted(map(repr, state.snapshot.ranges.items())))),
                )
            )
        return (self.view.registry.next_offset, tuple(streams), self.view.index.conflicts)

    def lies(
        self, path: tuple[Delivery, ...], asked: list[tuple[tuple[bytes, ...], Query, Query]]
    ) -> list[Lie]:
        """Asks both ways, first knowing nothing of freshness, then with every confirmed pulse; the world is
        used up by it."""
        found: list[Lie] = []
        if not self.replaced:
            found += self._judge(path, [(chain, free) for chain, free, _ in asked], fresh=False)
        for offset, (begun, value) in enumerate(self.script.beacons):
            self.view.book.began(offset.to_bytes(16, "big"), begun)
            self.view.apply_signal(offset, value, begun)
        for pulse in self.script.pulses:
            self.view.apply_pulse(pulse, self.script.end_ns)
        found += self._judge(path, [(chain, bounded) for chain, _, bounded in asked], fresh=True)
        return found

    def _judge(
        self, path: tuple[Delivery, ...], asked: list[tuple[tuple[bytes, ...], Query]], *, fresh: bool
    ) -> list[Lie]:
        found: list[Lie] = []
        credits: dict[int, dict[tuple[bytes, ...], tuple[int, int]]] = {}
        since: dict[int, int] = {}
        for chain, query in asked:
            given = answer(self.view, query, self.script.end_ns, WALL_MS)
            if isinstance(given, Problem):
                continue
            for match in given.matches:
                if match.position.epoch not in self.script.standing[self.control]:
                    found.append(Lie("credited what control has ended", path, match.position.epoch))
                tiers = (match.tiers.gpu // BLOCK_TOKENS, match.tiers.cpu // BLOCK_TOKENS)
                credits.setdefault(match.dp_rank, {})[chain] = tiers
                age_ns = round((match.staleness_ms or 0) * 1e6) if fresh else self.script.end_ns
                since[match.dp_rank] = max(since.get(match.dp_rank, 0), self.script.end_ns - age_ns)
        for rank, given_of in credits.items():
            worlds = self.script.possible(rank, since[rank])
            if not any(
                all(_within(given_of[chain], leading(held, chain)) for chain in given_of) for held in worlds
            ):
                found.append(Lie("credited what the worker may lack", path, f"rank {rank}, fresh {fresh}"))
            current = self.view.registry.current.get(("w0", rank))
            if current is not None and current.epoch in self.split:
                found.append(Lie("credited one of two", path, f"rank {rank}"))
        found += self._missing(path, credits, [chain for chain, _ in asked], fresh=fresh)
        return found

    def _missing(
        self,
        path: tuple[Delivery, ...],
        credits: dict[int, dict[tuple[bytes, ...], tuple[int, int]]],
        chains: list[tuple[bytes, ...]],
        *,
        fresh: bool,
    ) -> list[Lie]:
        """Without any fault everything certain is credited, and provenance is what it was."""
        found = []
        for epoch, key in self.script.keys.items():
            applied = self.positions[epoch]
            if epoch in self.spoilt or not applied or epoch not in self.script.standing[self.control]:
                continue
            done = self.script.streams[epoch][applied - 1].step
            certain = done.certain if done.certain is not None else done.truth
            for chain in chains:
                given = credits.get(key.rank, {}).get(chain, (0, 0))
                if given != leading(certain, chain):
                    found.append(Lie("missed or misjudged what is certain", path, f"{epoch}, fresh {fresh}"))
            held = self.view.streams.get(key)
            for (holder, block), age in done.ages.items():
                copy = held.state.copies.get((holder, 0), {}).get(block) if held else None
                if copy is None or copy[1].admitted_after != age:
                    found.append(Lie("provenance changed", path, epoch))
        return found


def _within(given: tuple[int, int], true: tuple[int, int]) -> bool:
    return given[0] <= true[0] and given[1] <= true[1]


def base_registry(script: Script) -> Registry:
    """Everything before the story's first scene."""
    registry = Registry(lru_cache(verify))
    for offset, record in enumerate(script.base):
        registry.fold(offset, *record)
    return registry
