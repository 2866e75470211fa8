"""The simulated pool behaves as vLLM's prefix cache, says all it does, and the truth log agrees."""

from __future__ import annotations

from collections import Counter
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.hooks.engine_event import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash
from kvledger.simulate.engine import EngineStep, PoolBusyError, PromptTooLongError, SimEngine
from kvledger.simulate.prompt import PromptPlanner, engine_hash
from kvledger.simulate.trace import TraceRequest


def request(
    ids: tuple[int, ...], *, tail: int = 0, output: int = 0, tenant: str = "t", at: float = 0.0
) -> TraceRequest:
    """A request of 16-token ids; `tail` tokens of the last id only if not 0."""
    tokens = len(ids) * 16 - (16 - tail if tail else 0)
    return TraceRequest(at, None, tenant, ids, tokens, output, 16)


def engine(capacity: int = 8, **options: object) -> SimEngine:
    return SimEngine("w", capacity_blocks=capacity, clock_ns=count(1).__next__, **options)  # type: ignore[arg-type]


def run(sim: SimEngine, asked: TraceRequest) -> list[EngineStep]:
    steps = []
    for _ in sim.serve(asked):
        step = sim.take_step()
        if step is not None:
            steps.append(step)
    sim.drain()
    return steps


def shape(step: EngineStep) -> list[tuple[str, int]]:
    return [(type(e).__name__, len(getattr(e, "hashes", ()))) for e in step.events]


def test_cold_prompt_stores_its_whole_blocks_in_one_event() -> None:
    (step,) = run(engine(), request((1, 2, 3), tail=5))
    (stored,) = step.events
    assert isinstance(stored, BlockStored)
    assert (len(stored.hashes), stored.parent, stored.token_count, stored.aligned) == (2, None, 32, True)
    assert (step.engine_seq, step.life) == (0, "w-0-life1")


def test_block_aligned_repeat_stores_its_last_block_again() -> None:
    sim = engine()
    run(sim, request((1, 2, 3)))
    (step,) = run(sim, request((1, 2, 3)))
    (stored,) = step.events
    assert isinstance(stored, BlockStored)
    keys = sim.plan(request((1, 2, 3))).keys
    assert (stored.hashes, stored.parent) == ((engine_hash(keys[2]),), engine_hash(keys[1]))
    assert sim.cached_keys() == {keys[0]: 1, keys[1]: 1, keys[2]: 2}


def test_repeat_with_a_tail_is_silent() -> None:
    sim = engine()
    run(sim, request((1, 2, 3), tail=4))
    assert run(sim, request((1, 2, 9), tail=1)) == []


def test_decoding_stores_one_block_at_a_time() -> None:
    steps = run(engine(), request((1, 2), tail=8, output=8 + 16 + 16 + 1))
    assert [shape(step) for step in steps] == [[("BlockStored", 1)]] * 4
    parents = [step.events[0] for step in steps]
    for before, after in pairwise(parents):
        assert isinstance(before, BlockStored)
        assert isinstance(after, BlockStored)
        assert after.parent == before.hashes[-1]


def test_last_sampled_token_is_not_computed() -> None:
    assert len(run(engine(), request((1,), output=16))) == 1
    assert len(run(engine(), request((1,), output=17))) == 2


def test_next_turn_hits_what_decoding_stored_if_its_ids_are_known() -> None:
    sim = engine(16)
    first = TraceRequest(0, "s", "t", (1, 2), 24, 25, 16, output_ids=(3, 4))
    run(sim, first)
    assert sim.match(sim.plan(request((1, 2, 3, 4, 5)))) == 3
    unknown = TraceRequest(0, "s", "t", (6, 7), 24, 25, 16)
    run(sim, unknown)
    assert sim.match(sim.plan(request((6, 7, 8)))) == 1


def test_oldest_free_block_is_evicted_first_and_a_request_frees_its_end_first() -> None:
    sim = engine(4)
    a, b = request((1, 2), tail=0), request((3, 4))
    run(sim, a)
    run(sim, b)
    (step,) = run(sim, request((5,)))
    assert step.events[0] == BlockRemoved((engine_hash(sim.plan(a).keys[1]),), step.events[0].tier, "GPU")  # type: ignore[union-attr]
    assert sim.match(sim.plan(a)) == 1
    assert sim.match(sim.plan(b)) == 2


def test_hit_blocks_are_not_evicted_for_the_same_prompt() -> None:
    sim = engine(3)
    run(sim, request((1, 2), tail=1))
    running = sim.admit(sim.plan(request((1, 7, 8))))
    assert running is not None
    assert running.hit_blocks == 1
    assert running.hit_tokens == 16


def test_eviction_names_one_hash_an_event() -> None:
    sim = engine(3)
    run(sim, request((1, 2, 3)))
    (step,) = run(sim, request((4, 5, 6)))
    assert shape(step) == [("BlockRemoved", 1)] * 3 + [("BlockStored", 3)]
    assert (sim.blocks_stored, sim.blocks_evicted) == (6, 3)


def test_running_requests_hold_their_blocks() -> None:
    sim = engine(4)
    first = sim.admit(sim.plan(request((1, 2, 3))))
    assert first is not None
    assert sim.admit(sim.plan(request((4, 5)))) is None
    with pytest.raises(PoolBusyError):
        next(sim.serve(request((4, 5))))
    sim.finish(first)
    assert sim.admit(sim.plan(request((4, 5)))) is not None


def test_prompt_larger_than_the_pool_is_refused() -> None:
    with pytest.raises(PromptTooLongError) as caught:
        run(engine(2), request((1, 2, 3)))
    assert (caught.value.needed_blocks, caught.value.capacity_blocks) == (3, 2)


def test_output_without_a_free_block_is_cut_short() -> None:
    sim = engine(2)
    assert len(run(sim, request((1, 2), tail=8, output=1000))) == 2
    assert sim.free_blocks == 2


def test_reset_is_refused_while_blocks_are_in_use_and_announced_by_the_next_step() -> None:
    sim = engine()
    running = sim.admit(sim.plan(request((1, 2))))
    assert running is not None
    assert not sim.reset()
    sim.finish(running)
    sim.take_step()
    assert sim.reset()
    assert sim.cached_blocks == 0
    assert sim.dirty
    steps = run(sim, request((1,)))
    assert shape(steps[0]) == [("AllBlocksCleared", 0), ("BlockStored", 1)]


def test_restart_says_nothing_and_starts_over() -> None:
    sim = engine()
    before = run(sim, request((1, 2)))
    assert sim.restart() == "w-0-life2"
    assert (sim.take_step(), sim.cached_blocks) == (None, 0)
    after = run(sim, request((1, 2)))
    assert [(s.engine_seq, s.life) for s in after] == [(0, "w-0-life2")]
    assert after[0].events == before[0].events


def test_removal_takes_every_copy_and_reports_those_in_use() -> None:
    sim = engine()
    run(sim, request((1, 2)))
    running = sim.admit(sim.plan(request((1, 2))))
    assert running is not None
    one, two = map(engine_hash, sim.plan(request((1, 2))).keys)
    sim.take_step()
    removal = sim.remove([one, two, EngineHash(b"\0" * 8)])
    assert (removal.removed, removal.in_use) == ((one, two, two), (one, two))
    assert removal.unknown == (EngineHash(b"\0" * 8),)
    assert sim.match(running.prompt) == 0
    step = sim.take_step()
    assert step is not None
    assert shape(step) == [("BlockRemoved", 1)] * 3
    sim.finish(running)
    assert sim.free_blocks == 8


def test_salt_is_announced_on_block_0_only_and_keeps_tenants_apart() -> None:
    sim = engine(16, salt_of={"t": "salt-t", "u": "salt-u"}.get)
    (step,) = run(sim, request((1, 2)))
    (stored,) = step.events
    assert isinstance(stored, BlockStored)
    assert stored.extra_keys is not None
    assert [extra.salt for extra in stored.extra_keys] == ["salt-t", None]
    assert sim.match(sim.plan(request((1, 2), tenant="u"))) == 0
    (again,) = run(sim, request((1, 2, 3)))
    (tail,) = again.events
    assert isinstance(tail, BlockStored)
    assert tail.extra_keys is not None
    assert [extra.salt for extra in tail.extra_keys] == [None]


REQUESTS = st.builds(
    request,
    st.lists(st.integers(0, 3), min_size=1, max_size=5).map(tuple),
    tail=st.integers(0, 15),
    output=st.integers(0, 40),
    tenant=st.sampled_from("ab"),
)
ACTIONS = st.one_of(REQUESTS, st.sampled_from(["reset", "restart", "remove"]))


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=30), st.integers(6, 14), st.integers(1, 3))
def test_pool_truth_and_wire_agree(actions: list[TraceRequest | str], capacity: int, slots: int) -> None:
    sim = engine(capacity, slots=slots, salt_of={"a": "a", "b": "b"}.get)
    wire: Counter[EngineHash] = Counter()
    seen: set[int] = set()
    stamps = [0]

    def fold() -> None:
        step = sim.take_step()
        if step is None:
            return
        assert step.made_ns > stamps[-1]
        stamps.append(step.made_ns)
        for event in step.events:
            if isinstance(event, BlockStored):
                wire.update(event.hashes)
                assert event.parent is None or wire[event.parent] or event.parent not in wire
            elif isinstance(event, BlockRemoved):
                wire.subtract(event.hashes)
            elif isinstance(event, AllBlocksCleared):
                wire.clear()
        assert min(wire.values(), default=0) >= 0

    for action in actions:
        if action == "reset":
            sim.drain()
            assert sim.reset()
        elif action == "restart":
            sim.restart()
            wire.clear()
        elif action == "remove":
            sim.remove([engine_hash(key) for key in list(sim.cached_keys())[::2]])
        else:
            assert isinstance(action, TraceRequest)
            for _ in sim.serve(action):
                fold()
        fold()
        pool = sim.cached_keys()
        seen.update(pool)
        assert {name: n for name, n in wire.items() if n} == {engine_hash(key): n for key, n in pool.items()}
        assert {key for key in seen if sim.log.length_at([key], sim.log.last_ns)} == set(pool)
        assert sum(pool.values()) <= capacity


@settings(max_examples=200)
@given(st.lists(REQUESTS, min_size=2, max_size=2), st.booleans())
def test_equal_keys_mean_equal_tokens_up_to_there(two: list[TraceRequest], expand: bool) -> None:
    planner = PromptPlanner(block_size=8 if expand else 16, expand=expand)
    first, second = (planner.plan(asked, asked.tenant) for asked in two)
    size = planner.block_size
    assert len(first.token_ids()) == first.tokens
    for index, (a, b) in enumerate(zip(first.keys, second.keys, strict=False), start=1):
        same = (
            first.salt == second.salt
            and first.token_ids()[: index * size] == second.token_ids()[: index * size]
        )
        assert (a == b) == same


def test_compact_form_scales_counts_and_expanded_form_keeps_them() -> None:
    asked = TraceRequest(0, None, "t", (0, 1, 2), 1030, 500, 512)
    compact = PromptPlanner().plan(asked, None)
    assert (len(compact.keys), compact.tokens, compact.output_tokens) == (2, 33, 16)
    expanded = PromptPlanner(expand=True).plan(asked, None)
    assert (len(expanded.keys), expanded.tokens, expanded.output_tokens) == (64, 1030, 500)
    with pytest.raises(ValueError, match="don't divide"):
        PromptPlanner(block_size=100, expand=True).plan(asked, None)
    with pytest.raises(ValueError, match="too large"):
        PromptPlanner(expand=True).plan(TraceRequest(0, None, "t", (1 << 25,), 512, 1, 512), None)
