"""Exhaustive small scope: everything that two workers, two blocks, one deletion and the faults between them can do,
in every order, up to a depth; each state is judged by the real auditor and held against the truth.

States that the same records, orders and memories make are one, in whatever order they came about, and so are those
that differ only by which worker or block is which. `python -m tests.model.auditor.deletion_scope --seconds 600` goes
as deep as the time allows and prints what it saw.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from auditor.finding import Condition
from auditor.record import StreamRecord, UnreadableRecord
from events.chain import MODULUS, transfer_digest
from events.ids import VerdictKind
from tests.model.auditor.deletion_world import BLOCKS, WORKERS, Act, World
from tests.support.audit_hook import Hook

Path = tuple[Act, ...]
ORDERS = [((0, 1), (0, 1)), ((1, 0), (0, 1)), ((0, 1), (1, 0)), ((1, 0), (1, 0))]


@dataclass
class Report:
    """`depth`: the deepest level that was seen whole; `merged`: ways to a state that was known."""

    depth: int = 0
    merged: int = 0
    complete: bool = True
    by_depth: list[int] = field(default_factory=list)
    verdicts: Counter[VerdictKind] = field(default_factory=Counter)
    wrong: list[tuple[VerdictKind | None, Path]] = field(default_factory=list)

    @property
    def states(self) -> int:
        return sum(self.by_depth)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind.value} {self.verdicts[kind]}" for kind in VerdictKind)
        return (
            f"{self.states} states ({', '.join(map(str, self.by_depth))} by depth), {self.merged} merged, "
            f"whole to depth {self.depth}; {kinds}; {len(self.wrong)} unsound"
        )


def told(record: StreamRecord | UnreadableRecord) -> str:
    """What a record says, without hashes that only the way here has made."""
    if isinstance(record, UnreadableRecord):
        return f"unreadable {record.seq}"
    events = [*record.stream_events, *(event for part in record.parts.values() for event in part)]
    twin = record.header_line.endswith(b"'")
    header = record.header
    return f"{header.seq} {header.control.offset} {record.signature is not None} {twin} {events!r}"


def memory(hook: Hook) -> str:
    """What a hook and its engine are like, whatever way they came to be so. Blocks go by their bytes."""
    physical = {where: sorted(ages) for where, ages in hook.copies.table.items() if ages}
    coming = sorted((one, after) for one, after in hook.landing.values())
    flags = (hook.seq, hook.installed, hook.alive, hook.cut, hook.acked, hook.nonce, hook.torn, hook.hole)
    waiting = [told(record) for record in hook.waiting]
    return f"{as_set(physical)} {as_set(hook.known)} {as_set(coming)} {flags} {waiting}"


def as_set(content: Mapping[tuple[str, bytes], object] | Sequence[object]) -> str:
    """The same text whatever the order, marked so that it is sorted again when blocks have changed names."""
    items = content.items() if isinstance(content, Mapping) else content
    return "{" + "|".join(sorted(repr(item) for item in items)) + "}"


def key(world: World) -> int:
    """Equal for states that are alike for ever."""
    streams: list[list[str]] = []
    for worker in WORKERS:
        mine: list[str] = []
        for hook in [hook for hook in (*world.past, *world.hooks) if hook.worker == worker]:
            fed = [told(one) for one in world.fed if one.stream and one.stream.epoch == hook.epoch]
            ended = world.registry.exits.get((hook.worker, hook.life))
            fenced = any(stream.epoch == hook.epoch for stream in world.registry.fences)
            mine.append(f"{hook.epoch_no if world.past else 0} {fed} {memory(hook)} {ended} {fenced}")
        streams.append(mine)
    shared = (world.request, world.nonce, world.registry.next_offset, world.returned, world.lied)
    return min(hash((shared, *renamed(streams, *order))) for order in ORDERS)


def renamed(streams: list[list[str]], workers: tuple[int, ...], names: tuple[int, ...]) -> list[str]:
    """The streams in another order, with workers and blocks called after their places in it."""
    found: list[str] = []
    for n in workers:
        text = "\n".join(streams[n])
        for raw, subset in NAMED.items():
            text = text.replace(raw, "block" + "+".join(sorted(str(names[one]) for one in subset)))
        for place, worker in enumerate(workers):
            text = text.replace(WORKERS[worker], f"worker{place}")
        found.append(re.sub(r"\{([^{}]*)\}", lambda part: "|".join(sorted(part[1].split("|"))), text))
    return found


def _named() -> dict[str, tuple[int, ...]]:
    """Blocks, sums of blocks and digests of transfers as they are printed, and which blocks they stand for."""
    first, second = (int.from_bytes(one, "big") for one in BLOCKS)
    both = ((first + second) % MODULUS).to_bytes(16, "big")
    digests = {repr(transfer_digest([one])): (n,) for n, one in enumerate(BLOCKS)}
    return {repr(both): (0, 1), **digests, **{repr(one): (n,) for n, one in enumerate(BLOCKS)}}


NAMED = _named()


def explore(
    start: Path,
    depth: int,
    faults: int,
    over: Callable[[], bool] = lambda: False,
    without: frozenset[Condition] = frozenset(),
) -> Report:
    """Every way of up to `depth` acts behind `start`, of which up to `faults` are struck or are trouble themselves."""
    report = Report()
    seen: dict[int, int] = {}
    level: list[tuple[Path, int]] = [(start, 0)]
    for further in range(depth, -1, -1):
        following: list[tuple[Path, int]] = []
        report.by_depth.append(0)
        for path, used in level:
            if over():
                report.complete = False
                return report
            world = World.at(path, without)
            state = key(world)
            if seen.get(state, faults + 1) <= used:
                report.merged += 1
                continue
            seen[state] = used
            report.by_depth[-1] += 1
            verdict = world.verdict()
            if verdict is not None:
                report.verdicts[verdict] += 1
            if world.unsound():
                report.wrong.append((verdict, path))
            if further:
                following += [
                    ((*path, act), used + bool(act.fault or act.name in TROUBLE))
                    for act in world.moves(used < faults)
                ]
        report.depth = len(report.by_depth) - 1
        level = following
    return report


def _plots() -> dict[str, Path]:
    """Beginnings that everything is tried behind: what it takes to a verdict is too long to try all of it."""
    held = (Act("compute", 0, 0), Act("compute", 1, 1))
    acked = (Act("compute", 0, 0), Act("request"), Act("obey", 0), Act("obey", 1))
    return {
        "nothing": (),
        "requested": (*held, Act("request")),
        "two tiers": (Act("compute", 0, 0), Act("demote", 0, 0), Act("onload", 0, 0), Act("request")),
        "landing": (Act("compute", 0, 0), Act("begin", 1, 0), Act("request")),
        "late": (*held, Act("request"), Act("obey", 0)),
        "acked": acked,
        "asked": (*acked, Act("nonce")),
        "answered": (*acked, Act("nonce"), Act("obey", 0)),
    }


PLOTS = _plots()
TROUBLE = frozenset({"hold back", "fence", "crash", "kill unattested", "reattach"})


def _past(turn: float) -> bool:
    return time.monotonic() > turn


def main() -> int:
    parser = argparse.ArgumentParser(description="Judge everything that a small deletion can come to.")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after this long")
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--plot", choices=sorted(PLOTS), action="append", help="only behind these beginnings")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    turns = [(plot, faults) for plot in options.plot or PLOTS for faults in (0, 1, 2)]
    states, wrong = 0, 0
    for left, (plot, faults) in zip(range(len(turns), 0, -1), turns, strict=True):
        turn = time.monotonic() + (until - time.monotonic()) / left
        report = explore(PLOTS[plot], options.depth, faults, partial(_past, turn))
        states, wrong = states + report.states, wrong + len(report.wrong)
        print(f"{plot}, faults up to {faults}: {report}", flush=True)
        for verdict, path in report.wrong[:5]:
            print(f"   unsound {verdict}: " + "; ".join(map(str, path)))
    print(f"{states} states, {wrong} unsound")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
