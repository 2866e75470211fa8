"""Random engines with physical blocks against what a reader of their streams believes.

The engine is the truth: slots that hold hashes, several slots for one hash, hits announced again without a
new slot, sliding groups that announce some hashes of a chain, clears, losses, removals on order, restarts.
"""

from __future__ import annotations

import hashlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import (
    NO_EXTRA_KEYS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineEvent,
    EngineHash,
    EngineTier,
    ExtraKeys,
    MalformedEvent,
)
from events.identity import make_salt, pack_tokens, profile_digest, root_parent
from events.ids import StreamStatus, Tier
from tests.support.folded_stream import CONTENT, RING, FoldedStream

SIZE = 2
SALTS = {None: "default", make_salt(RING["acme"].salt_key, "acme"): "acme", "nobody": None}
ROOT = root_parent(profile_digest(CONTENT.model_copy(update={"block_tokens": SIZE})))

Path = tuple[int, ...]
Content = tuple[str | None, Path]
paths = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple)
salts = st.sampled_from(sorted(SALTS, key=str))


def hash_of(content: Content) -> EngineHash:
    return EngineHash(hashlib.sha256(repr(content).encode()).digest()[:8])


def id_of(content: Content) -> bytes | None:
    salt, path = content
    domain = SALTS[salt]
    if domain is None:
        return None
    tokens = pack_tokens([token for token in path for _ in range(SIZE)])
    return RING[domain].hasher().chain(ROOT, tokens, SIZE)[-1]


class EngineAndReader(RuleBasedStateMachine):
    @initialize(
        capacity=st.integers(4, 9), told=st.booleans(), hybrid=st.booleans(), remembered=st.integers(0, 4)
    )
    def begin(self, capacity: int, told: bool, hybrid: bool, remembered: int) -> None:
        self.capacity = capacity
        self.hybrid = hybrid
        self.lives = 1
        self.slots: list[tuple[int, Content] | None] = [None] * capacity
        self.pending: list[EngineEvent] = []
        self.partial = False
        self.folded = FoldedStream(
            EngineConfig(
                content=CONTENT,
                capacity_blocks={Tier.GPU: capacity} if told else {},
                hashes_remembered=remembered,
            )
        )

    # --- the engine's own doing ---------------------------------------------------------------------

    @rule(salt=salts, path=paths, skip_cache=st.booleans(), data=st.data())
    def run_a_request(self, salt: str | None, path: Path, skip_cache: bool, data: st.DataObject) -> None:
        chain = [(salt, path[: depth + 1]) for depth in range(len(path))]
        hits = 0
        while not skip_cache and hits < len(chain) - 1 and self._holds(0, chain[hits]):
            hits += 1
        used = {self._slot(0, content) for content in chain[:hits]}
        needed = [(0, content) for content in chain[hits:]]
        window = [chain[-1]] if self.hybrid else []
        needed += [(1, content) for content in window]
        free = [slot for slot in range(self.capacity) if slot not in used]
        if len(free) < len(needed):
            return
        order = data.draw(st.permutations(free))
        for slot, own in zip(order, needed, strict=False):
            held = self.slots[slot]
            if held is not None:
                self.pending.append(removal(*held))
            self.slots[slot] = own
        if window:
            self.pending.append(sparse(chain, window, hits))
        self.pending.append(store(chain, hits))

    @rule(salt=salts, path=paths)
    def announce_hits_again(self, salt: str | None, path: Path) -> None:
        chain = [(salt, path[: depth + 1]) for depth in range(len(path))]
        hits = 0
        while hits < len(chain) and self._holds(0, chain[hits]):
            hits += 1
        if hits:
            self.pending.append(store(chain[:hits], 0))

    @rule(slot=st.integers(0, 8))
    def evict(self, slot: int) -> None:
        held = self.slots[slot % self.capacity]
        if held is not None:
            self.slots[slot % self.capacity] = None
            self.pending.append(removal(*held))

    @rule()
    def reset(self) -> None:
        self.slots = [None] * self.capacity
        self.pending.append(AllBlocksCleared())

    # --- what the hook sees of it -------------------------------------------------------------------

    @rule(admitted=st.one_of(st.none(), st.integers(0, 9)))
    def end_step(self, admitted: int | None) -> None:
        events, self.pending = self.pending, []
        self.folded.events(*events, admitted_after=admitted)
        cleared = any(isinstance(event, AllBlocksCleared) for event in events)
        self.partial = self.partial and not cleared

    @rule()
    def lose_step(self) -> None:
        if self.pending:
            self.pending = []
            self.folded.lose(0)
            self.partial = True

    @rule(at=st.integers(0, 5))
    @precondition(lambda self: self.pending)
    def garble_one_event(self, at: int) -> None:
        self.pending[at % len(self.pending)] = MalformedEvent("BlockStored", "token_ids")
        lost_at = at % len(self.pending)
        events, self.pending = self.pending, []
        self.folded.events(*events)
        self.partial = not any(isinstance(event, AllBlocksCleared) for event in events[lost_at:])

    @rule(slot=st.integers(0, 8))
    @precondition(lambda self: not self.pending)
    def remove_on_order(self, slot: int) -> None:
        held = self.slots[slot % self.capacity]
        if held is None:
            return
        name = hash_of(held[1])
        for index, other in enumerate(self.slots):
            if other is not None and other[1] == held[1]:
                self.slots[index] = None
                self.pending.append(removal(*other))
        self.folded.remove([name], 3)

    @rule()
    @precondition(lambda self: not self.pending)
    def take_a_snapshot(self) -> None:
        self.folded.snapshot(f"s{self.folded.stream.hash_count}")

    @rule()
    def restart(self) -> None:
        self.lives += 1
        self.slots = [None] * self.capacity
        self.pending = []
        self.partial = False
        self.folded.open(f"life-{self.lives}")

    @rule()
    @precondition(lambda self: not self.pending)
    def attach_again(self) -> None:
        life = self.folded.stream.engine_life
        self.folded.open(life)
        self.folded.snapshot()

    # --- what must hold -----------------------------------------------------------------------------

    @invariant()
    def a_reader_credits_nothing_that_the_engine_lacks(self) -> None:
        if self.pending:
            return
        for group in (0, 1):
            held = {id_of(content) for content in self._content(group)}
            assert self.folded.credited(group=group) <= held

    @invariant()
    def what_the_engine_holds_is_known_to_be_there_or_the_inventory_is_partial(self) -> None:
        if self.pending or self.partial:
            return
        assert self.folded.stream.inventory_known()
        for group in (0, 1):
            known = set(self.folded.copies(group=group))
            assert {id_of(content) for content in self._content(group)} - {None} <= known
        nameless = {
            (group, hash_of(content))
            for group in (0, 1)
            for content in self._content(group)
            if id_of(content) is None
        }
        assert sum(self.folded.stream.orphan_counts()) >= len(nameless)

    @invariant()
    def a_partial_inventory_says_so(self) -> None:
        if not self.pending:
            assert self.folded.stream.inventory_known() is not self.partial
            assert self.folded.state.status is StreamStatus.LIVE

    def _content(self, group: int) -> list[Content]:
        return [held[1] for held in self.slots if held is not None and held[0] == group]

    def _holds(self, group: int, content: Content) -> bool:
        return (group, content) in self.slots

    def _slot(self, group: int, content: Content) -> int:
        return self.slots.index((group, content))


def removal(group: int, content: Content) -> BlockRemoved:
    return BlockRemoved((hash_of(content),), EngineTier.GPU, "GPU", group)


def store(chain: list[Content], hits: int) -> BlockStored:
    salt = chain[0][0]
    fresh = chain[hits:]
    first = ExtraKeys(salt=salt) if salt is not None and not hits else NO_EXTRA_KEYS
    return BlockStored(
        tuple(hash_of(content) for content in fresh),
        hash_of(chain[hits - 1]) if hits else None,
        pack_tokens([content[1][-1] for content in fresh for _ in range(SIZE)]),
        SIZE,
        EngineTier.GPU,
        "GPU",
        extra_keys=(first, *[NO_EXTRA_KEYS] * (len(fresh) - 1)),
        group=0,
        spec_kind="full_attention",
    )


def sparse(chain: list[Content], window: list[Content], hits: int) -> BlockStored:
    """The sliding group's store: all new tokens, some of the hashes."""
    whole = store(chain, hits)
    keys = whole.extra_keys[-1:] if whole.extra_keys else None
    return BlockStored(
        tuple(hash_of(content) for content in window),
        whole.parent,
        whole.tokens,
        SIZE,
        EngineTier.GPU,
        "GPU",
        extra_keys=keys,
        group=1,
        spec_kind="sliding_window",
        window=SIZE,
    )


TestEngineAndReader = EngineAndReader.TestCase
TestEngineAndReader.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
