"""The stories that the exhaustive scope tells; between them every row of the fold's table that can cost a lie."""

from __future__ import annotations

from typing import get_args

from events.chain import transfer_digest
from events.ids import CopyState, Inventory, Tier
from events.model.control import ExitAttested
from events.model.part import (
    BlockEvicted,
    Cleared,
    CopyRun,
    DomainEvent,
    EngineLoss,
    HolderInventory,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
    Statement,
    StreamEvent,
    TierChanged,
    TransferCommitted,
    TransferStarted,
)
from tests.model.events.scope_plot import Held, Opening, Plot, Scene, Step, Told, checksum, holding
from tests.support.log import HIGH, LOW, block, declared, opened, stored

ROOT = bytes(16)
MIDDLE = b"\x80" + bytes(15)
BELOW = b"\x7f" + b"\xff" * 15
LOWER = [one for one in (block("low", n) for n in range(40)) if one <= BELOW]
UPPER = [one for one in (block("high", n) for n in range(40)) if one >= MIDDLE]
A, B, C, D = LOWER[0], UPPER[0], LOWER[1], UPPER[1]
"""A, B, C continue each other; D is a root of its own. B and D lie in the upper half of the id space."""
CHAINS = ((A, B, C), (D,))
STREAM_TYPES = {kind.model_fields["type"].default for kind in get_args(get_args(StreamEvent)[0])}
TIERS = (Tier.GPU, Tier.CPU)
START = opened(*TIERS)
ENDED = ExitAttested(worker="w0", engine_life="life-1", attester="bridge", evidence="exit 0")


def step(
    *said: StreamEvent | DomainEvent,
    truth: Held,
    certain: Held | None = None,
    ages: dict[tuple[str, bytes], int | None] | None = None,
) -> Step:
    """A record that says this, the stream's own events apart from the domain's."""
    stream: list[StreamEvent] = []
    domain: list[DomainEvent] = []
    for event in said:
        if event.type in STREAM_TYPES:
            stream.append(event)  # type: ignore[arg-type]
        else:
            domain.append(event)  # type: ignore[arg-type]
    return Step(tuple(stream), tuple(domain), truth, certain, ages or {})


def told(epoch: str, *steps: Step) -> tuple[Scene, ...]:
    return tuple(Told(epoch, one) for one in steps)


def birth(inventory: Inventory = Inventory.EMPTY, truth: Held | None = None) -> Step:
    return step(
        opened(*TIERS, inventory=inventory), declared(), truth=truth or {}, certain={} if truth else None
    )


def gone(*ids: bytes, holder: str = "gpu", certain: bool = True) -> BlockEvicted:
    return BlockEvicted(holder=holder, group=0, ids=ids, certain=certain)


def ranges(name: str, held: Held, halves: tuple[str, ...] = ("low", "high")) -> list[SnapshotRange]:
    bounds = {"low": (LOW, BELOW), "high": (MIDDLE, HIGH)}
    return [
        SnapshotRange(snapshot=name, holder=holder, group=0, low=bounds[half][0], high=bounds[half][1])
        for holder in ("gpu", "cpu")
        for half in halves
    ]


def snapshot(
    name: str,
    told_of: Held,
    truth: Held,
    *,
    certain: Held | None = None,
    halves: tuple[str, ...] = ("low", "high"),
) -> list[Step]:
    """Begin with the first range, the other ranges, the last with the end: a record for each range."""
    parents = {A: ROOT, B: A, C: B, D: ROOT}
    steps: list[Step] = []
    marks = ranges(name, told_of, halves)
    known = tuple(HolderInventory(holder=tier.value, inventory=Inventory.KNOWN) for tier in TIERS)
    for number, mark in enumerate(marks):
        ids = tuple(sorted(x for x in told_of.get(mark.holder, ()) if mark.low <= x <= mark.high))
        said: list[StreamEvent | DomainEvent] = []
        if number == 0:
            said += [SnapshotBegin(snapshot=name, opened=START), declared()]
        said.append(mark)
        if ids:
            run = CopyRun(
                profile=0, state=CopyState.COMMITTED, ids=ids, parents=tuple(parents[x] for x in ids)
            )
            said.append(SnapshotPart(runs=(run,)))
        if number == len(marks) - 1:
            said.append(SnapshotEnd(snapshot=name, inventories=known))
        steps.append(step(*said, truth=truth, certain=certain))
    return steps


def started(name: str, *ids: bytes, parent: bytes | None = None) -> TransferStarted:
    return TransferStarted(
        transfer=name, source="w9", holder="gpu", group=0, profile=0, ids=ids, parent=parent
    )


ABC = holding(gpu=[A, B, C])
AC = holding(gpu=[A, C])
SECOND_LIFE = (
    Opening("e2", "life-2"),
    *told(
        "e2",
        birth(),
        step(stored([D]), truth=holding(gpu=[D])),
        step(gone(D), stored([A], holder="cpu"), truth=holding(cpu=[A])),
    ),
)
SHORT_SECOND_LIFE = (
    Opening("e2", "life-2"),
    *told("e2", birth(), step(stored([D]), truth=holding(gpu=[D]))),
)

EVICTION = Plot(
    "eviction",
    CHAINS,
    (
        Opening("e1"),
        *told(
            "e1",
            birth(),
            step(stored([A, B, C]), truth=ABC),
            step(gone(B), truth=AC),
            step(stored([B], A), gone(A), truth=holding(gpu=[B, C])),
            step(
                stored([A]),
                TierChanged(from_holder="gpu", to_holder="cpu", group=0, ids=(B,)),
                truth=holding(gpu=[A, C], cpu=[B]),
            ),
        ),
        ENDED,
        *SECOND_LIFE,
    ),
)
REPAIR = Plot(
    "repair",
    CHAINS,
    (
        Opening("e1"),
        *told(
            "e1",
            birth(),
            step(stored([A, B, C]), truth=ABC),
            step(gone(B), truth=AC),
            *snapshot("s1", AC, AC),
            step(stored([D]), truth=holding(gpu=[A, C, D])),
        ),
        *SHORT_SECOND_LIFE,
    ),
)
HALF_SNAPSHOT = Plot(
    "half-snapshot",
    CHAINS,
    (
        Opening("e1"),
        *told(
            "e1",
            birth(),
            step(stored([A, B, C]), truth=ABC),
            step(gone(B), truth=AC),
            *snapshot("s1", AC, AC, halves=("low",)),
            step(stored([D]), truth=holding(gpu=[A, C, D])),
        ),
        *SHORT_SECOND_LIFE,
    ),
)
ORPHAN = Plot(
    "orphan",
    CHAINS,
    (
        Opening("e1"),
        *told(
            "e1",
            birth(),
            step(stored([A, B, C]), truth=ABC),
            step(gone(B, C), truth=holding(gpu=[A])),
            step(stored([C], B), truth=AC),
            step(stored([B], A), truth=ABC),
            step(gone(A), truth=holding(gpu=[B, C])),
        ),
        *SHORT_SECOND_LIFE,
    ),
)
BOTH = holding(gpu=[A, B], cpu=[A, B])
LOSS = Plot(
    "engine-loss",
    CHAINS,
    (
        Opening("e1"),
        *told(
            "e1",
            birth(),
            step(stored([A, B]), stored([A, B], holder="cpu"), truth=BOTH),
            step(gone(A, certain=False), truth=holding(gpu=[B], cpu=[A, B])),
            step(EngineLoss(first_missing=4), truth={}),
            *snapshot("s1", BOTH, {}, certain={}),
            step(stored([A]), truth=holding(gpu=[A])),
        ),
        Opening("e2", keeps_memory=True),
        *told(
            "e2",
            birth(Inventory.PARTIAL, holding(gpu=[A])),
            step(stored([A]), truth=holding(gpu=[A])),
        ),
    ),
)
CLEAR = Plot(
    "clear",
    CHAINS,
    (
        Opening("e1"),
        *told(
            "e1",
            birth(),
            step(stored([A, B]), stored([A, B], holder="cpu"), truth=BOTH),
            step(Cleared(holders=("gpu",)), truth=holding(cpu=[A, B])),
            step(stored([A, B]), truth=BOTH),
            step(Cleared(holders=("gpu",), unknown_scope=True), truth={}),
            step(stored([D], holder="cpu"), truth=holding(cpu=[D])),
        ),
        *SECOND_LIFE,
    ),
)
TRANSFER = Plot(
    "transfer",
    CHAINS,
    (
        Opening("e1"),
        *told(
            "e1",
            birth(),
            step(started("t1", A, B), truth={}),
            step(
                TransferCommitted(transfer="t1", digest=transfer_digest([A])),
                truth=holding(gpu=[A]),
                certain={},
            ),
            step(started("t2", D), truth=holding(gpu=[A]), certain={}),
            step(
                TransferCommitted(transfer="t2", digest=transfer_digest([D])),
                truth=holding(gpu=[A, D]),
                certain=holding(gpu=[D]),
            ),
            step(stored([A]), truth=holding(gpu=[A, D])),
        ),
        *SHORT_SECOND_LIFE,
    ),
)
STATEMENT = Plot(
    "statement",
    CHAINS,
    (
        Opening("e1"),
        *told(
            "e1",
            birth(),
            step(stored([A, B]), truth=holding(gpu=[A, B])),
            step(
                Statement(holder="gpu", group=0, count=2, checksum=checksum([A, B]), source="pool"),
                truth=holding(gpu=[A, B]),
            ),
            step(
                Statement(holder="gpu", group=0, count=1, checksum=checksum([B]), source="pool"),
                truth=holding(gpu=[B]),
                certain={},
            ),
            *snapshot("s1", holding(gpu=[B]), holding(gpu=[B])),
        ),
        *SHORT_SECOND_LIFE,
    ),
)
TWINS = Plot(
    "twins",
    CHAINS,
    (
        Opening("e1"),
        *told(
            "e1",
            birth(),
            step(stored([A]), truth=holding(gpu=[A])),
            step(stored([B], A), truth=holding(gpu=[A, B])),
            step(gone(A), truth=holding(gpu=[B])),
        ),
        *SHORT_SECOND_LIFE,
    ),
    twins=True,
)
AGES = Plot(
    "provenance",
    CHAINS,
    (
        Opening("e1"),
        *told(
            "e1",
            birth(),
            step(stored([A], admitted_after=4), truth=holding(gpu=[A]), ages={("gpu", A): 4}),
            step(stored([A], admitted_after=9), truth=holding(gpu=[A]), ages={("gpu", A): 4}),
            step(
                TierChanged(from_holder="gpu", to_holder="cpu", group=0, ids=(A,)),
                truth=holding(cpu=[A]),
                ages={("cpu", A): 4},
            ),
            step(stored([A], holder="cpu", admitted_after=9), truth=holding(cpu=[A]), ages={("cpu", A): 4}),
            step(gone(A, holder="cpu"), truth={}),
            step(stored([A], holder="cpu", admitted_after=9), truth=holding(cpu=[A]), ages={("cpu", A): 9}),
        ),
        *SHORT_SECOND_LIFE,
    ),
)
RANKS = Plot(
    "ranks",
    CHAINS,
    (
        Opening("e1"),
        Opening("r1", rank=1),
        *told("e1", birth(), step(stored([A]), truth=holding(gpu=[A]))),
        *told("r1", birth(), step(stored([D]), truth=holding(gpu=[D]))),
        *told("e1", step(gone(A), truth={})),
        *told("r1", step(gone(D), truth={}), step(stored([A, B]), truth=holding(gpu=[A, B]))),
        Opening("e2", "life-2"),
        *told("e2", birth(), step(stored([D]), truth=holding(gpu=[D]))),
    ),
)
PLOTS = (EVICTION, ORPHAN, REPAIR, HALF_SNAPSHOT, LOSS, CLEAR, TRANSFER, STATEMENT, TWINS, AGES, RANKS)
BY_NAME = {plot.name: plot for plot in PLOTS}
