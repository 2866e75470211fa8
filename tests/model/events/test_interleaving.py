"""Any interleaving of kv.control and any number of streams, with redelivery, gives the same states, the same
digest, and the same answers at the same positions."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from events.fold.digest import index_digest
from router_client.answer import answer
from tests.model.events.scope_plot import DOMAIN, PROFILE_ID, Plot, Script, write
from tests.model.events.scope_story import PLOTS
from tests.model.events.scope_world import WALL_MS, Delivery, World, base_registry, queries
from tests.model.events.small_scope import decoded_once
from tests.support.log import PROFILE

SCRIPTS: dict[str, Script] = {}


def script_of(plot: Plot) -> Script:
    if plot.name not in SCRIPTS:
        SCRIPTS[plot.name] = write(plot)
    return SCRIPTS[plot.name]


def told(script: Script, kept: dict[str, list[str]], rng: random.Random, repeats: float) -> World:
    """The same records of every source in their own order, interleaved at random; some come again later."""
    world = World.at(script, base_registry(script), ())
    left = {source: list(items) for source, items in kept.items()}
    while any(left.values()):
        source = rng.choice([name for name, items in left.items() if items])
        what = left[source].pop(0)
        world.deliver(Delivery(what, "" if source == "control" else source))
        if rng.random() < repeats:
            again = [(epoch, n) for epoch, seen in world.delivered.items() for n in sorted(seen)]
            older = [(epoch, n) for epoch, n in again if n < world.newest[epoch] or world.newest[epoch] == n]
            if older:
                epoch, number = rng.choice(older)
                world.deliver(Delivery("again", epoch, number))
    return world


def said(world: World, script: Script) -> list[dict[str, Any]]:
    """Every answer, with and without a bound, but for the offsets that repeats move. Which profiles a reader has
    ever seen is its own memory, for telling 404 from an empty answer, so it is made equal first."""
    found = []
    world.view.profiles_seen[DOMAIN] = {PROFILE_ID: (PROFILE.model, None)}
    for offset, (begun, value) in enumerate(script.beacons):
        world.view.book.began(offset.to_bytes(16, "big"), begun)
        world.view.apply_signal(offset, value, begun)
    for pulse in script.pulses:
        world.view.apply_pulse(pulse, script.end_ns)
    for _, free, bounded in queries(script):
        for query in (free, bounded):
            document = answer(world.view, query, script.end_ns, WALL_MS).model_dump(mode="json")
            document.pop("token", None)
            for match in document.get("matches", []):
                match["position"].pop("offset", None)
            if "excluded" in document:
                document["excluded"].sort(key=repr)
            found.append(document)
    return found


@given(st.sampled_from(PLOTS), st.integers(0, 1 << 32), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_interleaving_of_topics_and_streams_matters(plot: Plot, seed: int, whole: bool) -> None:
    script, rng = script_of(plot), random.Random(seed)
    kept: dict[str, list[str]] = {"control": ["control"] * len(script.control)}
    for epoch, records in script.streams.items():
        kept[epoch] = [rng.choice(("next", "next", "next", "lost")) for _ in records]
    if not whole:
        kept = {source: items[: rng.randint(0, len(items))] for source, items in kept.items()}
    outcomes = []
    with decoded_once():
        for repeats in (0.0, 0.0, 0.5):
            world = told(script, kept, rng, repeats)
            states = [stream.state for stream in world.view.streams.values()]
            registry = world.view.registry
            current = {
                state.key: (state.status, state.fault, state.next_seq, state.copies, state.usage)
                for state in states
                if not registry.superseded(state.key) or state.key not in registry.registrations
            }
            outcomes.append((index_digest(states, registry), current, said(world, script)))
    assert outcomes[0] == outcomes[1] == outcomes[2]
