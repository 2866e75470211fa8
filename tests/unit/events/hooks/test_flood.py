"""Floods through the real decoder and the real stream: memory stays within its bounds, and the log is told."""

from __future__ import annotations

import gc
import os
import random
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from events.errors import DecodeError
from events.fold.registry import Registry
from events.hooks.bridge import Bridge
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import EngineBatch, EngineHash
from events.hooks.engine_port import Confirmed, RestatementOverrunError
from events.hooks.engine_stream import EngineStream
from events.hooks.obligation import Obligations
from events.hooks.translation import Translation
from events.hooks.vllm import decode_batch
from events.hooks.zmq_source import ZmqSource
from events.ids import Capability, Inventory, Tier
from events.model.part import SnapshotEnd, UnknownEvents
from events.signing import verify
from tests.support.fake_engine import FakeEngine
from tests.support.folded_stream import CONTENT, RING

POOL = 200
LIMIT = 2 * POOL + 1_024
CONFIG = EngineConfig(
    content=CONTENT,
    capacity_blocks={Tier.GPU: POOL},
    copies_kept=400,
    hashes_remembered=128,
    profiles_kept=32,
    groups_kept=8,
)
LIMIT_BYTES = 3 << 20


def stored(
    hashes: list[int], *, parent: int | None = None, size: int = 4, token: int = 1, **more: Any
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": [(one + token) % (1 << 31) for one in hashes for _ in range(size)],
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
    }
    return fields | more


def unique(at: int) -> list[dict[str, Any]]:
    return [stored(list(range(at * 50 + 1, at * 50 + 51)))]


def orphans(at: int) -> list[dict[str, Any]]:
    return [stored(list(range(at * 50 + 1, at * 50 + 51)), parent=1 << 62)]


def one_chain(at: int) -> list[dict[str, Any]]:
    """An endless prompt whose earlier blocks are removed again: their hashes lie before those that are held."""
    hashes = list(range(at * 50 + 1, at * 50 + 51))
    gone = [{"type": "BlockRemoved", "block_hashes": hashes[:-1], "medium": "GPU"}]
    return [stored(hashes, parent=at * 50 if at else None), *gone]


def salts(at: int) -> list[dict[str, Any]]:
    return [stored([at * 20 + i + 1], extra_keys=[[f"salt-{at}-{i}"]]) for i in range(20)]


def adapters(at: int) -> list[dict[str, Any]]:
    names = [f"adapter-{at}-{i}" for i in range(20)]
    return [stored([at * 20 + i + 1], lora_name=name, extra_keys=[[name]]) for i, name in enumerate(names)]


def groups(at: int) -> list[dict[str, Any]]:
    kinds = [f"kind-{at}-{i}" for i in range(20)]
    return [
        stored([at * 20 + i + 1], group_idx=(at * 20 + i) % 1_000, kv_cache_spec_kind=kind)
        for i, kind in enumerate(kinds)
    ]


def sizes(at: int) -> list[dict[str, Any]]:
    """A size of its own for each, in a batch with a sparse store, where all are read first."""
    return [stored([at + 1], size=at % 5_000 + 5), stored([at + 2], token_ids=[1] * 99)]


def twins(at: int) -> list[dict[str, Any]]:
    return [stored([at * 50 + i + 1], token_ids=[7] * 4) for i in range(50)]


def hits(at: int) -> list[dict[str, Any]]:
    """As a client can make an engine announce them, and the removals that leave a doubt behind each."""
    hashes = list(range(at * 20 + 1, at * 20 + 21))
    return [
        stored(hashes),
        stored(hashes),
        {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"},
    ]


class Flooded:
    """A stream that is flooded; counts what the log is told, and keeps none of it."""

    def __init__(self, config: EngineConfig = CONFIG) -> None:
        self.stream = EngineStream("w0", 0, RING, config)
        self.stream.open("life-1")
        self.restated = 0
        self.flagged = 0
        self.undecodable = 0
        self.seq = 0

    def take(self, payload: bytes) -> None:
        try:
            batch = decode_batch(self.seq, payload)
        except DecodeError:
            self.undecodable += 1
            self.stream.lost(self.seq, self.seq)
        else:
            self.told(self.stream.translate(batch, None))
        self.seq += 1

    def told(self, translation: Translation) -> None:
        self.restated += translation.snapshot_due
        self.flagged += sum(isinstance(event, UnknownEvents) for event in translation.stream_events)

    def inventory(self) -> Inventory:
        *_, last = self.stream.snapshot("s")
        (end,) = [event for event in last.stream_events if isinstance(event, SnapshotEnd)]
        return next(entry.inventory for entry in end.inventories if entry.holder == "gpu")


@contextmanager
def memory() -> Iterator[Callable[[], int]]:
    """Bytes that are held more than at the beginning."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]

        def held() -> int:
            gc.collect()
            return tracemalloc.get_traced_memory()[0] - before

        yield held
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("flood", "batches"),
    [
        (unique, 60),
        (orphans, 60),
        (one_chain, 100),
        (salts, 90),
        (adapters, 90),
        (groups, 40),
        (sizes, 200),
        (twins, 85),
        (hits, 90),
    ],
)
def test_a_flood_is_bounded_and_makes_the_holder_partial(
    flood: Callable[[int], list[dict[str, Any]]], batches: int
) -> None:
    flooded = Flooded()
    with memory() as held:
        for at in range(batches):
            flooded.take(msgspec.msgpack.encode([0.0, flood(at), 0]))
        assert held() < LIMIT_BYTES
    holders = flooded.stream._holders.holders()
    assert all(holder.total <= LIMIT for holder in holders)
    assert flooded.stream.hash_count <= CONFIG.hashes_limit + 100
    # Nothing was given up without a word: either the holder is partial, or the stream is flagged.
    bounds = flooded.stream.bounds
    if bounds.forgotten:
        assert flooded.inventory() is Inventory.PARTIAL
        assert flooded.restated
    assert bounds.forgotten or flooded.flagged
    if bounds.refused_profiles or bounds.unplaced:
        assert flooded.flagged


def test_garbage_is_bounded_and_counted() -> None:
    rng = random.Random(4)
    flooded = Flooded()
    with memory() as held:
        for at in range(300):
            payload = msgspec.msgpack.encode([0.0, unique(at)[:1], 0])
            cut = bytearray(payload[: rng.randrange(len(payload))])
            for _ in range(3):
                if cut:
                    cut[rng.randrange(len(cut))] = rng.randrange(256)
            flooded.take(bytes(cut))
            flooded.take(rng.randbytes(rng.randrange(300)))
        assert held() < LIMIT_BYTES
    assert flooded.undecodable > 80
    assert flooded.inventory() is Inventory.PARTIAL


def test_an_unforeseen_field_never_raises_into_the_bridge() -> None:
    """Any value in any field of an event, as a decoder may see it, costs that event at most."""
    rng = random.Random(7)
    odd: list[Any] = [
        *(None, True, False, 0, -1, 3, 1 << 31, (1 << 64) - 1, 1.5, "", "x", "x" * 300, b"", b"x" * 64),
        *([], [None], [[]], [[None]], [["a", 1]], [["a", 1 << 40]], {}, {"a": 1}, "\u0000", "GPU", "cpu"),
        *([1], [1, 2], [b"x" * 8], [[]], [[["m", -3]]], [b"d"], [[b"d"]], "sliding_window", "mamba"),
    ]
    flooded = Flooded()
    for number in range(1_000):
        events: list[dict[str, Any]] = [
            stored([number + 1, number + 2], group_idx=0, session_id="s"),
            {"type": "BlockRemoved", "block_hashes": [number], "medium": "GPU", "group_idx": 0},
            {"type": "AllBlocksCleared"},
        ]
        event = rng.choice(events[:2])
        for _ in range(rng.randrange(1, 4)):
            event[rng.choice(list(event))] = rng.choice(odd)
        flooded.take(msgspec.msgpack.encode([0.0, [e for e in events if rng.random() < 0.8], 0]))
    assert flooded.undecodable == 0
    assert flooded.flagged > 100


def test_a_snapshot_that_is_overrun_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("events.hooks.inventory.WATCHED_KEPT", 20)
    monkeypatch.setattr("events.hooks.inventory_snapshot.COPIES_PER_RECORD", 40)
    flooded = Flooded()
    flooded.take(msgspec.msgpack.encode([0.0, unique(0), 0]))
    records = flooded.stream.snapshot("s")
    assert [len(next(records).stream_events) for _ in range(2)] == [2, 1]
    flooded.take(msgspec.msgpack.encode([0.0, unique(1), 0]))
    with pytest.raises(RestatementOverrunError):
        list(records)
    assert len(list(flooded.stream.snapshot("s"))) > 3


def test_fifty_thousand_blocks_that_are_never_removed_take_little_memory() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    flooded = Flooded()
    for at in range(50):
        flooded.take(msgspec.msgpack.encode([0.0, unique(at), 0]))
    before = resident_bytes()
    for at in range(50, 1_050):
        flooded.take(msgspec.msgpack.encode([0.0, unique(at), 0]))
    # Kept, they took more than 30 MB.
    assert resident_bytes() - before < 12 << 20
    assert flooded.stream.bounds.forgotten > 45_000


class Quiet:
    """A hook that translates what it is fed and forgets what came of it."""

    installed = 0
    log = "log-1"
    doubtful = False

    def __init__(self) -> None:
        self.flooded = Flooded()
        self.obligations = Obligations(Registry(verify), ())

    def feed(self, batch: EngineBatch, admitted_after: int | None = None) -> None:
        self.flooded.told(self.flooded.stream.translate(batch, admitted_after))

    def lost(self, first: int, last: int | None) -> None:
        self.flooded.stream.lost(first, last)

    def unknown(self, kind: str, length: int) -> None:
        del kind, length
        self.flooded.undecodable += 1

    def inspected(self, resident: Mapping[int, Mapping[EngineHash, int]]) -> None:
        raise AssertionError("there is no agent")

    def reachable_by(self, removal: Capability, *, admission_known: bool) -> None:
        raise AssertionError("there is no agent")

    def restarted(self, engine_life: str, *, born_after: int | None = None) -> None:
        del born_after
        self.flooded.stream.open(engine_life)

    def engine_ended(self) -> None:
        raise AssertionError("there is no agent that would see it")


async def test_a_flood_through_a_real_socket_is_bounded_and_leaves_the_bridge_able_to_confirm() -> None:
    rng = random.Random(1)
    async with (
        FakeEngine(buffer_steps=64, topic="kv") as engine,
        ZmqSource(engine.endpoint, engine.replay_endpoint, topic="kv") as source,
    ):
        hook = Quiet()
        bridge = Bridge(source)
        bridge.bind(hook, await bridge.attach(5))
        assert engine._pub is not None
        with memory() as held:
            for at in range(120):
                await engine.publish(unique(at))
                await engine.publish_raw(rng.randbytes(500))
                await engine._pub.send_multipart([b"kv", rng.randbytes(at % 9), rng.randbytes(2_000)])
                await engine._pub.send_multipart([b"kv" + rng.randbytes(4), bytes(8), b"x"])
                if at % 20 == 19:
                    await bridge.confirm(5)
            assert held() < LIMIT_BYTES
        for _ in range(5):
            if isinstance(await bridge.confirm(5), Confirmed):
                break
        else:
            pytest.fail("never confirmed")
        assert hook.flooded.undecodable > 80
        assert bridge.counts.unreadable > 80
        assert hook.flooded.inventory() is Inventory.PARTIAL
