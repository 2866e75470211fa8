"""Which engines are started, in which order, and what is done with each.

Each has a log and an index of its own: a deletion is proven only if every engine life that the log has ever seen has
acked or is known to have ended, and nobody attests the end of an engine that nobody touched.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx

from tests.live.engine import LiveEngine
from tests.live.index import Index
from tests.live.row import Row
from tests.live.run import Run, Tenants
from tests.live.scenarios import adapters, clearing, deleting, groups, living, ranks, serving, twins
from tests.live.tiny_model import GEMMA, LLAMA, write_adapter, write_model, write_weights

Scenario = Callable[[Run], None]
T = TypeVar("T")
BROKEN = (RuntimeError, OSError, httpx.HTTPError, subprocess.SubprocessError)
"""An engine, a command or the stack doesn't do what it is there for."""
DUMMY = ("--load-format", "dummy")
BACKEND = ("--attention-backend", "CPU_ATTN")
"""Named, as the engine's server tells it only then."""
LORA = ("--enable-lora", "--max-lora-rank", "8", "--max-loras", "2")
LORA_ROUTES = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


@dataclass(frozen=True)
class Place:
    """What a whole run shares."""

    python: Path
    folder: Path
    say: Callable[[Row], None]
    launched: dict[str, LiveEngine] = field(default_factory=dict)
    """Engines that start already while another one is tried."""


@dataclass(frozen=True)
class Setup:
    """One engine. `weights`: it is loaded from files, so that its identity is known."""

    name: str
    scenarios: tuple[Scenario, ...]
    agent: bool
    attached: bool = True
    config: Mapping[str, object] = field(default_factory=lambda: LLAMA)
    weights: bool = False
    options: tuple[str, ...] = ()
    lora: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    blocks: int = 96
    ranks: int = 1
    developed: bool = True

    def launch(self, place: Place) -> None:
        """Begins to start its engine, unless that is done."""
        if self.name in place.launched:
            return
        model = write_model(place.folder / f"{self.name}-model", self.config)
        if self.weights:
            write_weights(model, seed=1)
        options = [*self.options, *(() if self.weights else DUMMY)]
        if self.lora:
            options += [*LORA, "--lora-modules"]
            for seed, name in enumerate(self.lora, 11):
                options.append(f"{name}={write_adapter(place.folder / f'{self.name}-{name}', seed)}")
        engine = place.launched[self.name] = LiveEngine(
            place.python,
            model,
            place.folder,
            self.name,
            agent=place.folder / f"{self.name}.sock" if self.agent else None,
            blocks=self.blocks,
            ranks=self.ranks,
            options=options,
            developed=self.developed,
            environment=dict(self.environment),
        )
        engine.launch()

    @contextmanager
    def begin(self, place: Place, index: Index, tenants: Tenants) -> Iterator[Run]:
        """Its engine serves and its bridge runs."""
        self.launch(place)
        with place.launched.pop(self.name) as engine:
            run = Run(engine, index, place.folder, tenants, place.say, attached=self.attached)
            try:
                run.bridge()
                yield run
            finally:
                run.close()
                index.unbridge_if_there(self.name)

    def names(self) -> set[str]:
        return {one.__name__ for one in self.scenarios}

    def go(self, place: Place, chosen: Sequence[str]) -> None:
        """All its scenarios, or the chosen ones."""
        with (
            Index(place.folder / f"{self.name}-home") as index,
            self.begin(place, index, Tenants(index)) as run,
        ):
            for scenario in _of(self.scenarios, chosen):
                scenario(run)
            if self.agent:
                living.gone(run)


@dataclass(frozen=True)
class TwinSetup:
    """Two engines that compute the same."""

    name: str
    one: Setup
    other: Setup
    scenarios: tuple[Callable[[twins.Twins], None], ...]

    def launch(self, place: Place) -> None:
        """Begins to start the first of them."""
        self.one.launch(place)

    def names(self) -> set[str]:
        return {one.__name__ for one in self.scenarios}

    def go(self, place: Place, chosen: Sequence[str]) -> None:
        with Index(place.folder / f"{self.name}-home") as index, ExitStack() as stack:
            tenants = Tenants(index)
            first = stack.enter_context(self.one.begin(place, index, tenants))
            both = twins.Twins(first, stack.enter_context(self.other.begin(place, index, tenants)))
            for scenario in _of(self.scenarios, chosen):
                scenario(both)


def go(place: Place, only: Sequence[str], chosen: Sequence[str]) -> None:
    """Every setup, or those of `only` in its order, that has one of the `chosen` scenarios, one after another. While
    one is tried the next one's engine starts; there are never more than two engines at once."""
    named = {setup.name: setup for setup in SETUPS}
    setups = [named[name] for name in only or named]
    setups = [setup for setup in setups if not chosen or setup.names() & set(chosen)]
    try:
        for setup, following in itertools.zip_longest(setups, setups[1:]):
            setup.launch(place)
            if following is not None and isinstance(setup, Setup):
                following.launch(place)
            try:
                setup.go(place, chosen)
            except BROKEN as error:
                # What the other engines show is worth having; this one has failed.
                traceback.print_exc()
                place.say(
                    Row(setup.name, "broke off", differences=1, note=f"{type(error).__name__}: {error}")
                )
    finally:
        for engine in place.launched.values():
            engine.stop(signal.SIGKILL)


def _of(scenarios: Sequence[Callable[[T], None]], chosen: Sequence[str]) -> list[Callable[[T], None]]:
    return [one for one in scenarios if not chosen or one.__name__ in chosen]


SERVING = (
    serving.shared_prefixes,
    serving.repeated,
    serving.decoded,
    serving.two_tenants,
    serving.evicted_and_preempted,
    serving.aborted,
)
CLEARING = (clearing.reset_while_idle, clearing.reset_while_busy, clearing.slept, clearing.paused)
EVERYTHING = (
    *SERVING,
    living.bridge_killed,
    deleting.deleted,
    *CLEARING,
    living.bridge_stopped,
    deleting.deleted_while_running,
    living.ended_by_sigterm,
    living.ended_by_sigkill,
    living.ended_unseen,
)
LORA_SCENARIOS = (adapters.many_adapters, adapters.loaded_from_elsewhere, adapters.loaded_in_place)
HYBRID_SCENARIOS = (
    serving.shared_prefixes,
    serving.decoded,
    groups.window_lacks_prefix,
    serving.evicted_and_preempted,
    groups.hits_agree,
    clearing.reset_while_idle,
    deleting.deleted,
)
RANK_SCENARIOS = (ranks.each_rank, ranks.deleted_on_ranks, clearing.reset_while_idle)


def _lora(name: str, *, agent: bool) -> Setup:
    return Setup(
        name,
        LORA_SCENARIOS,
        agent,
        weights=True,
        options=BACKEND,
        lora=adapters.NAMES,
        environment=LORA_ROUTES,
    )


def _hybrid(name: str, *, agent: bool) -> Setup:
    return Setup(name, HYBRID_SCENARIOS, agent, config=GEMMA)


SETUPS: tuple[Setup | TwinSetup, ...] = (
    Setup("agent", EVERYTHING, agent=True, attached=False),
    _hybrid("hybrid-agent", agent=True),
    _lora("lora-agent", agent=True),
    Setup("ranks-agent", (*RANK_SCENARIOS, living.ended_by_sigkill), agent=True, ranks=2),
    Setup("bridge", EVERYTHING, agent=False, attached=False),
    _hybrid("hybrid-bridge", agent=False),
    _lora("lora-bridge", agent=False),
    Setup("ranks-bridge", (*RANK_SCENARIOS, living.ended_by_sigkill), agent=False, ranks=2),
    Setup("no-dev-mode", (deleting.deleted_without_a_route,), agent=False, attached=False, developed=False),
    TwinSetup(
        "twins",
        Setup("twin-1", (), agent=True, weights=True, options=BACKEND),
        Setup(
            "twin-2",
            (),
            agent=False,
            weights=True,
            options=(*BACKEND, "--prefix-caching-hash-algo", "sha256_cbor"),
            environment={"PYTHONHASHSEED": "7"},
        ),
        (twins.same_prefix, twins.deleted_on_both, twins.one_restarted, twins.other_weights),
    ),
)
