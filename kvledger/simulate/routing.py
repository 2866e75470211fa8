"""Hit rates of routing rules over simulated engines alone: what the ledger's routing is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from kvledger.simulate.engine import PromptTooLongError, Running, SimEngine
from kvledger.simulate.prompt import DEFAULT_BLOCK_SIZE, Prompt
from kvledger.simulate.trace import TraceRequest

Choose = Callable[[int, Prompt, Sequence[SimEngine]], int]


@dataclass(slots=True)
class HitRate:
    """Tokens hit over tokens asked, summed over prompts."""

    requests: int = 0
    too_long: int = 0
    asked_tokens: int = 0
    hit_tokens: int = 0

    @property
    def rate(self) -> float:
        """Between 0 and 1; 0 when nothing was asked."""
        return self.hit_tokens / self.asked_tokens if self.asked_tokens else 0.0

    def add(self, running: Running) -> None:
        """Count one admitted request."""
        self.requests += 1
        self.asked_tokens += running.prompt.tokens
        self.hit_tokens += running.hit_tokens


def round_robin(number: int, prompt: Prompt, engines: Sequence[SimEngine]) -> int:  # noqa: ARG001
    """The n-th request goes to worker n mod N, whatever is cached where."""
    return number % len(engines)


def longest_prefix(number: int, prompt: Prompt, engines: Sequence[SimEngine]) -> int:
    """The worker that truly has most of the prompt; ties go round. Hints can come near, not above."""
    lengths = [engine.match(prompt) for engine in engines]
    best = max(lengths)
    tied = [index for index, length in enumerate(lengths) if length == best]
    return tied[number % len(tied)]


def simulate_routing(
    requests: Iterable[TraceRequest],
    workers: int,
    capacity_blocks: int,
    choose: Choose = round_robin,
    *,
    block_size: int = DEFAULT_BLOCK_SIZE,
    expand: bool = False,
    slots: int = 1,
) -> HitRate:
    """Serve the requests in order on `workers` fresh engines, without services and without a clock.

    Tenants are kept apart as cache salts keep them apart. A prompt that fits no pool counts as `too_long`
    only. Deterministic.
    """
    ticks = count(1)
    engines = [
        SimEngine(
            f"w{index}",
            capacity_blocks=capacity_blocks,
            clock_ns=ticks.__next__,
            block_size=block_size,
            expand=expand,
            salt_of=str,
            slots=slots,
        )
        for index in range(workers)
    ]
    total = HitRate()
    for number, request in enumerate(requests):
        prompt = engines[0].plan(request)
        engine = engines[choose(number, prompt, engines)]
        try:
            steps = engine.serve(request)
            total.add(next(steps))
        except PromptTooLongError:
            total.too_long += 1
            continue
        for _ in steps:
            pass
        engine.take_step()
    return total


def simulate_round_robin(
    requests: Iterable[TraceRequest],
    workers: int,
    capacity_blocks: int,
    *,
    block_size: int = DEFAULT_BLOCK_SIZE,
    expand: bool = False,
    slots: int = 1,
) -> HitRate:
    """Hit rate of round-robin routing over the same engines that the fleet runs."""
    return simulate_routing(
        requests, workers, capacity_blocks, round_robin, block_size=block_size, expand=expand, slots=slots
    )
