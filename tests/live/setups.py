"""Which engines are started, in which order, and what is done with each.

Those with an agent come first: their ends are attested, so that they owe nothing to the deletions that come later.
Nobody attests the end of an engine that nobody touched, which leaves later deletions without a proof; `bridge`
therefore has its deletions before its restarts, and what comes after it asks for acks only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.live.engine import LiveEngine
from tests.live.index import Index
from tests.live.row import Row
from tests.live.run import Run, Tenants
from tests.live.scenarios import adapters, clearing, deleting, groups, living, ranks, serving, twins
from tests.live.tiny_model import GEMMA, LLAMA, write_adapter, write_model, write_weights

Scenario = Callable[[Run], None]
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
    index: Index
    tenants: Tenants
    say: Callable[[Row], None]


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

    @contextmanager
    def begin(self, place: Place) -> Iterator[Run]:
        """Its engine serves and its bridge runs."""
        model = write_model(place.folder / f"{self.name}-model", self.config)
        if self.weights:
            write_weights(model, seed=1)
        options = [*self.options, *(() if self.weights else DUMMY)]
        if self.lora:
            options += [*LORA, "--lora-modules"]
            for seed, name in enumerate(self.lora, 11):
                options.append(f"{name}={write_adapter(place.folder / f'{self.name}-{name}', seed)}")
        engine = LiveEngine(
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
        with engine:
            run = Run(engine, place.index, place.folder, place.tenants, place.say, attached=self.attached)
            try:
                run.bridge()
                yield run
            finally:
                run.close()
                # First the engine: the bridge then sees its end.
                place.index.unbridge_if_there(self.name)

    def names(self) -> set[str]:
        return {one.__name__ for one in self.scenarios}

    def go(self, place: Place, chosen: Sequence[str]) -> None:
        """All its scenarios, or the chosen ones."""
        with self.begin(place) as run:
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

    def names(self) -> set[str]:
        return {one.__name__ for one in self.scenarios}

    def go(self, place: Place, chosen: Sequence[str]) -> None:
        with ExitStack() as stack:
            first = stack.enter_context(self.one.begin(place))
            both = twins.Twins(first, stack.enter_context(self.other.begin(place)))
            for scenario in _of(self.scenarios, chosen):
                scenario(both)


T = TypeVar("T")


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


def _hybrid(name: str, more: tuple[Scenario, ...], *, agent: bool) -> Setup:
    return Setup(name, (*HYBRID_SCENARIOS, *more), agent, config=GEMMA)


SETUPS: tuple[Setup | TwinSetup, ...] = (
    Setup("agent", EVERYTHING, agent=True, attached=False),
    _hybrid("hybrid-agent", (deleting.deleted,), agent=True),
    _lora("lora-agent", agent=True),
    Setup("ranks-agent", (*RANK_SCENARIOS, living.ended_by_sigkill), agent=True, ranks=2),
    Setup("bridge", EVERYTHING, agent=False, attached=False),
    _hybrid("hybrid-bridge", (), agent=False),
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
