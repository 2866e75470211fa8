"""Memory of a lookup view, bytes per copy: fold state and prefix index, by holders per block and by streams.

    python -m tests.benchmarks.memory [--copies 200000] [--json]

Each shape is built in a process of its own, from real records through the codec; what counts is the growth of
that process' resident set. The index' own share is measured by building it alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import random
import resource
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from events.codec import encode_batch
from events.ids import ROOT_PARENT
from events.model.batch import ControlPosition
from events.model.part import BlockStored, ProfileDeclared
from router_client.index import PrefixIndex
from tests.support.log import PROFILE, opened
from tests.support.reader_world import RING, World

SHAPES = ((8, 1.0), (8, 1.1), (8, 8.0), (1_600, 1.1))
"""(streams, copies of a block on average)."""
CHAIN_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes of resident memory per copy."""

    streams: int
    holders_a_block: float
    copies: int
    view_bytes: float
    index_bytes: float


def placed(streams: int, holders: float, copies: int) -> Iterator[tuple[int, list[bytes]]]:
    """(stream, chain of new ids): each chain is on `holders` streams, on average."""
    rng, done, extra = random.Random(7), 0, 0.0
    while done < copies:
        packed = rng.randbytes(16 * CHAIN_BLOCKS)
        extra += holders
        count, extra = int(extra), extra - int(extra)
        first = rng.randrange(streams)
        for n in range(count):
            # New objects for each stream, as a decoder makes them.
            yield (first + n) % streams, [packed[at : at + 16] for at in range(0, len(packed), 16)]
            done += CHAIN_BLOCKS


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def view_bytes(streams: int, holders: float, copies: int) -> tuple[int, int]:
    """(bytes, copies held)."""
    world = World()
    hooks = [world.join(f"w{n}", start=False) for n in range(streams)]
    aliases = [RING["default"].alias(h.builder.worker, 0, h.builder.epoch_no) for h in hooks]
    declared = ProfileDeclared(profile=0, content=PROFILE, block_bytes=(100,))
    for hook, alias in zip(hooks, aliases, strict=True):
        world.deliver(hook.builder.seal(opened(), parts=[(alias, [declared])]).value)
        hook.builder.sent.clear()
    before = resident_bytes()
    for number, ids in placed(streams, holders, copies):
        builder = hooks[number].builder
        record = encode_batch(
            worker=builder.worker,
            rank=0,
            epoch=builder.epoch,
            epoch_no=builder.epoch_no,
            seq=builder.seq,
            prev=builder.prev,
            control=ControlPosition(offset=builder.control.offset, hash=builder.control.hash),
            stream_events=(),
            parts=[(aliases[number], [BlockStored(holder="gpu", group=0, profile=0, ids=tuple(ids))])],
        )
        builder.seq, builder.prev = record.seq + 1, record.header_sha256
        world.deliver(record.value)
    return resident_bytes() - before, world.view.copies


def index_bytes(streams: int, holders: float, copies: int) -> tuple[int, int]:
    """(bytes, copies held) of the prefix index alone."""
    before = resident_bytes()
    index, held = PrefixIndex(), 0
    bits = [index.new_bit() for _ in range(streams)]
    for number, ids in placed(streams, holders, copies):
        index.store(bits[number], ids, [ROOT_PARENT, *ids[:-1]])
        held += len(ids)
    return resident_bytes() - before, held


def row(shape: tuple[int, float, int]) -> Row:
    streams, holders, copies = shape
    context = multiprocessing.get_context("spawn")
    found: list[float] = []
    for measure in (view_bytes, index_bytes):
        with context.Pool(1) as pool:
            used, held = pool.apply(measure, (streams, holders, copies))
            found.append(used / held)
    return Row(streams, holders, copies, *found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--copies", type=int, default=200_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row((streams, holders, options.copies)) for streams, holders in SHAPES]
    if options.json:
        print(json.dumps([asdict(one) for one in rows]))
        return
    print(f"{'streams':>8}{'holders a block':>17}{'copies':>10}{'view B/copy':>13}{'index alone':>13}")
    for one in rows:
        print(
            f"{one.streams:8d}{one.holders_a_block:17.1f}{one.copies:10d}{one.view_bytes:13.0f}"
            f"{one.index_bytes:13.0f}"
        )


if __name__ == "__main__":
    main()
