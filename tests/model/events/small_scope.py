"""Exhaustive small scope: every loss and duplication of a stream's records across two epochs, and every
interleaving of them with the control topic, through the real fold and the real view.

Deliveries are explored breadth first; states that answer alike for ever are merged and counted once. In every
state the view is asked with and without a bound, and what it credits is held against what the worker really had
at some instant inside the bound. `python -m tests.model.events.small_scope --seconds 600 --repeats 2` goes as
deep as the time allows and prints what it saw.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import ModuleType

import events.fold.apply as apply_module
import events.fold.registry as registry_module
import router_client.view as view_module
from tests.model.events.scope_plot import Plot, Script, write
from tests.model.events.scope_story import BY_NAME, PLOTS
from tests.model.events.scope_world import Delivery, Lie, World, base_registry, queries

DECODERS: tuple[tuple[ModuleType, str], ...] = (
    (view_module, "decode_batch"),
    (view_module, "decode_pulse"),
    (registry_module, "decode_control"),
    (apply_module, "profile_digest"),
)


@dataclass
class Report:
    """`states`: different ones; `merged`: deliveries that led to one seen before. `complete`: nothing was left
    out within the given repeats."""

    plot: str
    records: int
    control: int
    states: int = 0
    merged: int = 0
    faultless: int = 0
    complete: bool = True
    lies: list[Lie] = field(default_factory=list)

    def __str__(self) -> str:
        whole = "complete" if self.complete else "cut short"
        return (
            f"{self.plot}: {self.records} records, {self.control} of control: {self.states} states, "
            f"{self.merged} merged, {self.faultless} without a fault, {whole}, {len(self.lies)} lies"
        )


def moves(script: Script, world: World, repeats: int, strangers: int) -> Iterator[tuple[Delivery, int, int]]:
    """What can be delivered next, with the repeats and strangers' records left after it."""
    if world.control < len(script.control):
        yield Delivery("control"), repeats, strangers
    for epoch, records in script.streams.items():
        at = world.positions[epoch]
        if at < len(records):
            yield Delivery("next", epoch), repeats, strangers
            yield Delivery("lost", epoch), repeats, strangers
            if strangers:
                yield Delivery("garbled", epoch), repeats, strangers - 1
                if script.plot.twins:
                    yield Delivery("instead", epoch), repeats, strangers - 1
        if repeats:
            for number in sorted(world.delivered[epoch]):
                yield Delivery("again", epoch, number), repeats - 1, strangers
        if strangers and script.plot.twins and world.newest[epoch] == at - 1 >= 0:
            yield Delivery("twin", epoch, at - 1), repeats, strangers - 1


def key_of(world: World, repeats: int, strangers: int) -> tuple[object, ...]:
    repeatable = tuple(sorted((e, tuple(sorted(d))) for e, d in world.delivered.items())) if repeats else ()
    flags = (world.replaced, tuple(sorted(world.split)), tuple(sorted(world.spoilt)))
    newest = tuple(world.newest.values()) if strangers else ()
    return (
        tuple(world.positions.values()),
        repeats,
        strangers,
        repeatable,
        newest,
        flags,
        world.fingerprint(),
    )


def explore(
    plot: Plot,
    *,
    repeats: int = 1,
    strangers: int = 1,
    most_states: int | None = None,
    stop_at_lie: bool = False,
    over: Callable[[], bool] = lambda: False,
) -> Report:
    """Tells a plot in every way. `repeats`: redeliveries in one telling; `strangers`: records that can't be
    read or that a second process wrote; losses have no limit."""
    script = write(plot)
    base, asked = base_registry(script), queries(script)
    report = Report(plot.name, sum(map(len, script.streams.values())), len(script.control))
    start: tuple[Delivery, ...] = ()
    seen: set[int] = set()
    todo: deque[tuple[tuple[Delivery, ...], int, int]] = deque([(start, repeats, strangers)])
    while todo:
        if over() or (most_states is not None and report.states >= most_states):
            report.complete = False
            break
        path, repeats_left, strangers_left = todo.popleft()
        world = World.at(script, base, path)
        key = hash(key_of(world, repeats_left, strangers_left))
        if key in seen:
            report.merged += 1
            continue
        seen.add(key)
        report.states += 1
        report.faultless += not world.spoilt
        for delivery, repeats_then, strangers_then in moves(script, world, repeats_left, strangers_left):
            todo.append(((*path, delivery), repeats_then, strangers_then))
        report.lies += world.lies(path, asked)
        if report.lies and stop_at_lie:
            report.complete = False
            break
    return report


@contextmanager
def decoded_once() -> Iterator[None]:
    """The same bytes are decoded and their signatures checked once; records are immutable."""
    kept = [(module, name, getattr(module, name)) for module, name in DECODERS]
    for module, name, real in kept:
        setattr(module, name, lru_cache(real))
    try:
        yield
    finally:
        for module, name, real in kept:
            setattr(module, name, real)


def _past(turn: float) -> bool:
    return time.monotonic() > turn


def main() -> int:
    parser = argparse.ArgumentParser(description="Tell small stories of one worker in every possible way.")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after this long")
    parser.add_argument("--repeats", type=int, default=1, help="redeliveries in one telling")
    parser.add_argument(
        "--strangers", type=int, default=1, help="unreadable or foreign records in one telling"
    )
    parser.add_argument("--plot", choices=sorted(BY_NAME), action="append", help="only these stories")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    total, lies = 0, 0
    with decoded_once():
        plots = [BY_NAME[name] for name in options.plot] if options.plot else list(PLOTS)
        for left, plot in zip(range(len(plots), 0, -1), plots, strict=True):
            now = time.monotonic()
            turn = now + (until - now) / left
            report = explore(
                plot,
                repeats=options.repeats,
                strangers=options.strangers,
                over=partial(_past, turn),
            )
            total, lies = total + report.states, lies + len(report.lies)
            print(report, flush=True)
            for lie in report.lies[:3]:
                print("   ", lie.what, lie.detail, " ".join(":".join(map(str, d)) for d in lie.path))
    print(f"{total} states, {lies} lies")
    return 1 if lies else 0


if __name__ == "__main__":
    sys.exit(main())
