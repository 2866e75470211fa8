"""Two engines at once on one index: the first with the agent, the second untouched.

They compute the same, though their hash algorithms and seeds differ, so they share block ids. Later the second one
comes back with other weights under the same name, and shares none.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field

from tests.live.engine import BLOCK
from tests.live.prompt import Prompt
from tests.live.row import Row
from tests.live.run import Run
from tests.live.tiny_model import write_weights


@dataclass
class Twins:
    """`shared` was sent to both of them."""

    first: Run
    second: Run
    shared: list[Prompt] = field(default_factory=list)

    @property
    def both(self) -> tuple[Run, Run]:
        return self.first, self.second

    def send(self, tokens: list[int], domain: str = "default") -> Prompt:
        """To both."""
        self.first.send(tokens, domain)
        return self.second.send(tokens, domain)

    def row(self, scenario: str) -> Row:
        return Row("twins", scenario)

    def finish(self, row: Row) -> None:
        self.first.finish(row)


def same_prefix(twins: Twins) -> None:
    """One profile id finds both, so their ids are the same; each is credited with what it has itself."""
    row = twins.row("one prefix on both, other hash algorithm and seed")
    for length in (100, 200, 300):
        twins.shared.append(twins.send(twins.first.words(length)))
    for run in twins.both:
        run.send([*twins.shared[-1].tokens[:96], *run.words(150)], outputs=40)
        run.compare(row)
    profiles = [run.index.profile_of(run.engine) for run in twins.both]
    row.demand(profiles[0] == profiles[1], "their identities differ")
    for prompt in twins.shared:
        for run in twins.both:
            found = run.known(prompt, profile=profiles[0])
            row.basis.add(found.basis or found.why)
            row.expect(found.blocks, len(prompt.tokens) // BLOCK)
    row.note = f"profile {profiles[0][:12]} of both"
    twins.finish(row)


def deleted_on_both(twins: Twins) -> None:
    """The first takes the tenant's blocks out, the second resets."""
    row = twins.row("a tenant deleted on both")
    tokens = twins.first.words(200)
    mine = twins.send(tokens, "acme")
    number = twins.first.order("acme")
    row.note = ", ".join(f"{run.engine.name} {run.acked(number)}" for run in twins.both)
    for run in twins.both:
        row.demand(run.acked(number) == "discharged", f"{run.engine.name} doesn't ack")
        row.expect(run.again(mine) // BLOCK, 0, len(tokens) // BLOCK)
        run.compare(row)
    verdict = twins.first.verdict(number)
    row.note += f"; {verdict}"
    row.demand(verdict.startswith("PROVEN"), "not proven")
    twins.finish(row)


def one_restarted(twins: Twins) -> None:
    """While it is away and when it is back the other's answers are right, and it is never credited with what the
    other one has."""
    for gone, stays in (twins.both, twins.both[::-1]):
        for prompt in twins.shared:
            stays.again(prompt)
        gone.engine.stop(signal.SIGKILL)
        row = twins.row(f"{gone.engine.name} is away")
        stays.compare(row)
        _nothing(row, gone, twins.shared)
        twins.finish(row)
        gone.engine.start()
        row = twins.row(f"{gone.engine.name} is back")
        gone.compare(row, absent=True)
        stays.compare(row)
        gone.again(twins.shared[0])
        gone.compare(row)
        twins.finish(row)


def other_weights(twins: Twins) -> None:
    """The second is started with other weights under its name: no id of the first's is ever its own."""
    first, second = twins.both
    before = second.index.profile_of(second.engine)
    second.engine.stop(signal.SIGTERM)
    write_weights(second.engine.model, seed=2)
    second.engine.start()
    row = twins.row("one of them with other weights, same name")
    after = second.index.profile_of(second.engine)
    row.demand(after != before, "its identity is the former one")
    for prompt in twins.shared:
        for run in twins.both:
            run.again(prompt)
        for run, profile, right in (
            (first, before, len(prompt.tokens)),
            (second, after, len(prompt.tokens)),
            (first, after, 0),
            (second, before, 0),
        ):
            found = run.known(prompt, profile=profile)
            row.basis.add(found.basis or found.why)
            row.expect(found.blocks, right // BLOCK, len(prompt.tokens) // BLOCK)
    for run in twins.both:
        run.compare(row)
    row.note = f"profiles {before[:12]} and {after[:12]}"
    twins.finish(row)


def _nothing(row: Row, run: Run, prompts: list[Prompt]) -> None:
    """Waits until a stream is left out of answers, which takes its bound; nothing of it is credited then."""
    deadline_s = time.monotonic() + 10
    for prompt in prompts:
        found = run.standing(prompt)
        while found.basis is not None and time.monotonic() < deadline_s:
            time.sleep(0.1)
            found = run.standing(prompt)
        row.basis.add(found.basis or found.why)
        row.expect(found.blocks, 0, len(prompt.tokens) // BLOCK)
