"""A store that outlives the engine: what the hook declares of it, and who is credited once an owner is enrolled."""

from __future__ import annotations

import pytest

from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import NO_EXTRA_KEYS, BlockStored, EngineBatch, EngineHash, EngineTier
from events.hooks.engine_stream import EngineStream
from events.hooks.translation import Translation
from events.identity import pack_tokens
from events.ids import Inventory, Role, Tier
from events.model.control import HolderEnrolled
from router_client.link import StoreReason, uncredited
from tests.support.log import PROFILE
from tests.support.reader_world import RING, Hook, World, chain_of, lengths

SIZE = 16
TOKENS = list(range(4 * SIZE))
CHAIN = chain_of(TOKENS)
CONTENT = PROFILE.model_copy(update={"block_tokens": None})


def engine_stored(tier: EngineTier, blocks: int) -> BlockStored:
    return BlockStored(
        hashes=tuple(EngineHash(number.to_bytes(8, "big")) for number in range(blocks)),
        parent=None,
        tokens=pack_tokens(TOKENS[: blocks * SIZE]),
        block_size=SIZE,
        tier=tier,
        medium=tier.value,
        lora_name=None,
        extra_keys=(NO_EXTRA_KEYS,) * blocks,
        group=0,
    )


class Worker:
    """An engine with a disk of its own or a store that others reach, as its hook tells it."""

    def __init__(self, world: World, name: str, store: str, tier: Tier = Tier.DISK) -> None:
        config = EngineConfig(content=CONTENT, durable_ids={tier: store}, connectors=("OffloadingConnector",))
        self.stream = EngineStream(name, 0, RING, config, bound_salts=dict)
        self.hook: Hook = world.join(name, start=False)
        self.hook.write(self.stream.open("life-e1", from_birth=True))
        self._seq = 0

    def says(self, *events: BlockStored) -> None:
        batch = EngineBatch(self._seq, 0, None, events, bytes(32))
        self._seq += 1
        self.write(self.stream.translate(batch, None))

    def snapshot(self) -> None:
        for record in self.stream.snapshot("s"):
            self.write(record)

    def write(self, told: Translation) -> None:
        (events,) = told.parts.values() or ([],)
        self.hook.write(*told.stream_events, events=events)


def enrol(world: World, store: str, owner: str, tier: Tier = Tier.DISK) -> None:
    world.order(HolderEnrolled(durable_id=store, tier=tier, owner=owner), Role.ENROLMENT)


def pulse(world: World, *workers: Worker) -> None:
    world.beacon()
    for worker in workers:
        worker.hook.pulse(checksums=False)
    while not world.view.work(10_000):
        pass


def test_a_disk_of_a_workers_own_counts_once_the_worker_is_enrolled_as_its_owner() -> None:
    world = World()
    worker = Worker(world, "w0", "w0-disk")
    worker.says(engine_stored(EngineTier.DISK, 4), engine_stored(EngineTier.GPU, 2))
    pulse(world, worker)
    assert lengths(world.get(CHAIN)) == {"w0": 2}
    enrol(world, "w0-disk", "w0")
    pulse(world, worker)
    (match,) = world.get(CHAIN).matches
    assert (match.tiers.gpu, match.tiers.disk, match.tiers.remote) == (32, 64, 64)
    worker.snapshot()
    pulse(world, worker)
    assert lengths(world.get(CHAIN)) == {"w0": 4}


def test_what_a_disk_held_before_is_not_known_so_absence_is_not_claimed() -> None:
    world = World()
    worker = Worker(world, "w0", "w0-disk")
    enrol(world, "w0-disk", "w0")
    worker.says(engine_stored(EngineTier.DISK, 1))
    pulse(world, worker)
    found = world.get(CHAIN)
    assert (lengths(found), found.complete) == ({"w0": 1}, False)
    holders = world.view.streams[world.registry.current["w0", 0]].state.holders
    inventories = {holder.tier: (holder.durable_id, holder.inventory) for holder in holders.values()}
    assert inventories[Tier.DISK] == ("w0-disk", Inventory.PARTIAL)
    assert inventories[Tier.GPU] == (None, Inventory.EMPTY)


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_store_that_two_workers_name_alike_is_credited_to_both(snapshot: bool) -> None:
    world = World()
    owner, other = (Worker(world, name, "store-1", Tier.REMOTE) for name in ("w0", "w1"))
    enrol(world, "store-1", "w0", Tier.REMOTE)
    owner.says(engine_stored(EngineTier.REMOTE, 4))
    other.says(engine_stored(EngineTier.GPU, 1), engine_stored(EngineTier.REMOTE, 1))
    if snapshot:
        other.snapshot()
        owner.snapshot()
    pulse(world, owner, other)
    assert lengths(world.get(CHAIN)) == {"w0": 4, "w1": 4}


def test_a_worker_that_has_not_used_the_store_yet_is_told_apart() -> None:
    world = World()
    owner, other = (Worker(world, name, "store-1", Tier.REMOTE) for name in ("w0", "w1"))
    enrol(world, "store-1", "w0", Tier.REMOTE)
    owner.says(engine_stored(EngineTier.REMOTE, 4))
    other.says(engine_stored(EngineTier.GPU, 1))
    pulse(world, owner, other)
    view = world.view.streams[world.registry.current["w1", 0]]
    assert lengths(world.get(CHAIN)) == {"w0": 4, "w1": 1}
    assert uncredited(view, "remote", world.registry) is StoreReason.NO_GROUPS
    other.says(engine_stored(EngineTier.REMOTE, 1))
    pulse(world, owner, other)
    assert lengths(world.get(CHAIN)) == {"w0": 4, "w1": 4}
    assert uncredited(view, "remote", world.registry) is None
