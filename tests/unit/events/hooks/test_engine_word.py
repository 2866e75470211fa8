"""What a running engine may put on its wire, from its bytes to a lookup's answer: widths, forms, parents, salts."""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

import msgspec
import pytest

from events.errors import DecodeError
from events.hooks.engine_config import EngineConfig
from events.identity import make_salt
from events.ids import GroupKind, Tier
from events.model.part import Group
from router_client.wire import Answer
from tests.support.engine_world import Engine
from tests.support.log import PROFILE
from tests.support.reader_world import RING, World, chain_of, lengths
from tests.support.vllm_message import SIZE, message, removed, stored

WIDTHS = (0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
"""Every form in which msgpack packs an unsigned integer, at its edges."""


ORDERS: tuple[Literal["little", "big"], ...] = ("little", "big")


def tokens(count: int, first: int = 0) -> list[int]:
    return list(range(first, first + count * SIZE))


def heard(world: World, *engines: Engine, blocks: int = 20, **asked: Any) -> Answer:
    """The answer for the first `blocks` blocks after everybody's confirmation."""
    for engine in engines:
        engine.confirm()
    return world.get(token_ids=tokens(blocks), profile=PROFILE.model, **asked)


@pytest.fixture
def world() -> World:
    return World(domains=[("acme", "acme")])


@pytest.fixture
def bystander(world: World) -> Engine:
    """Has something else in the default domain, so that the profile is known there."""
    engine = Engine(world, "bystander")
    engine.say(stored([1], tokens(1, 90_000)))
    return engine


@pytest.mark.parametrize("form", ["integer", "8 bytes", "32 bytes"])
def test_small_and_large_hashes_all_name_their_blocks(world: World, form: str) -> None:
    """msgpack packs a small integer in fewer than 8 bytes; no message is lost by it."""
    engine = Engine(world)
    width = {"integer": 0, "8 bytes": 8, "32 bytes": 32}[form]
    hashes: list[Any] = [n.to_bytes(width, "big") if width else n for n in WIDTHS]
    engine.say(stored(hashes, tokens(len(hashes))))
    found = heard(world, engine)
    assert (lengths(found), found.complete) == ({"w0": len(WIDTHS)}, True)
    engine.say(removed(hashes[6]))
    assert lengths(heard(world, engine)) == {"w0": 6}


def test_a_small_hash_is_a_parent_like_any_other(world: World) -> None:
    engine = Engine(world)
    engine.say(stored([0], tokens(1)))
    engine.say(stored([2**64 - 1], tokens(1, SIZE), parent_block_hash=0))
    assert lengths(heard(world, engine)) == {"w0": 2}


@pytest.mark.parametrize("bad", [-1.5, True, None, "7", [7], 2**64 - 1 + 0.0])
def test_one_bad_field_costs_its_own_event_and_is_seen(world: World, bad: object) -> None:
    engine, other = Engine(world), Engine(world, "w1")
    engine.say(stored([1], tokens(1)))
    other.say(stored([1, 2], tokens(2)))
    engine.say(stored([bad], tokens(1, 900)), stored([2], tokens(1, SIZE), parent_block_hash=1))
    found = heard(world, engine, other, min_coverage=0)
    state = world.view.streams[next(key for key in world.view.streams if key.worker == "w0")].state
    assert state.unknown_events > 0
    # What was stored before the event may have been meant by it; what the engine stores again is certain.
    assert (lengths(found), found.complete) == ({"w1": 2}, False)
    engine.say(stored([1, 2], tokens(2)))
    assert lengths(heard(world, engine, other)) == {"w0": 2, "w1": 2}


def test_an_engine_that_changes_its_encoding_is_read_on(world: World) -> None:
    """An upgrade in place: arrays first, maps later, and fields that nobody knows yet."""
    engine = Engine(world)
    engine.say(["BlockStored", [1, 2], None, tokens(2), SIZE, None, "GPU", None])
    engine.say(stored([3], tokens(1, 2 * SIZE), parent_block_hash=2, shiny_new_field={"a": [1]}))
    engine.say(["BlockRemoved", [1], "GPU"])
    engine.say(stored([1], tokens(1)))
    assert lengths(heard(world, engine)) == {"w0": 3}


@pytest.mark.parametrize("event", [{"type": "BlocksFolded", "n": 1}, ["BlocksFolded", 1]])
def test_an_event_of_an_unknown_kind_is_counted_and_changes_nothing(world: World, event: object) -> None:
    engine = Engine(world)
    engine.say(stored([1], tokens(1)), event)
    assert lengths(heard(world, engine)) == {"w0": 1}
    (stream,) = world.view.streams.values()
    assert stream.state.unknown_events == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"not msgpack at all",
        json.dumps([1.5, [{"type": "AllBlocksCleared"}], 0]).encode(),
        msgspec.msgpack.encode({"v": 2, "frames": []}),
        message(stored([1], tokens(1)))[:-1],
    ],
)
def test_an_encoding_that_nobody_knows_is_an_error_and_never_an_empty_batch(
    world: World, payload: bytes
) -> None:
    engine = Engine(world)
    engine.say(stored([1], tokens(1)))
    with pytest.raises(DecodeError):
        engine.publish(payload)
    assert lengths(heard(world, engine)) == {"w0": 1}


def test_a_connector_that_names_a_wrong_parent_makes_no_wrong_match(world: World) -> None:
    """A store tier that saves only what it lacks and links it to what it saved last: the same hash was told
    with another parent, so one of the two is wrong and everything held is in doubt, visibly."""
    engine = Engine(world, config=EngineConfig(content=PROFILE, connectors=("store",)))
    engine.say(stored([1, 2, 3, 4], tokens(4)))
    engine.say(stored([1], tokens(1), medium="CPU"))
    engine.say(stored([4], tokens(1, 3 * SIZE), parent_block_hash=1, medium="CPU"))
    found = heard(world, engine)
    assert (found.matches, found.complete) == ([], False)
    (stream,) = world.view.streams.values()
    assert stream.state.unknown_events == 1
    wrong = [*tokens(1), *tokens(1, 3 * SIZE)]
    assert world.get(token_ids=wrong, profile=PROFILE.model).matches == []
    # The GPU's own word contradicts the connector's once more; from then on there is one story again.
    for _ in range(2):
        engine.say(stored([1, 2, 3, 4], tokens(4)))
    assert heard(world, engine).matches[0].tiers.gpu == 4 * SIZE


def test_equal_prompts_have_equal_ids_whatever_the_engines_hashes_are(world: World) -> None:
    """A hash seed of each process' own changes nothing; equal numbers for other tokens mean nothing."""
    one, two, three = Engine(world, "one"), Engine(world, "two"), Engine(world, "three")
    one.say(stored([11, 12, 13], tokens(3)))
    two.say(stored([b"x" * 32, b"y" * 32, b"z" * 32], tokens(3)))
    three.say(stored([11, 12, 13], tokens(3, 5_000)))
    assert lengths(heard(world, one, two, three)) == {"one": 3, "two": 3}


def test_workers_with_another_profile_are_never_credited_for_this_one(world: World) -> None:
    other = PROFILE.model_copy(update={"revision": "r2"})
    one, two = Engine(world, "one"), Engine(world, "two", config=EngineConfig(content=other))
    for engine in (one, two):
        engine.say(stored([1, 2], tokens(2)))
        engine.confirm()
    assert lengths(world.get(chain_of(tokens(2)))) == {"one": 2}
    assert lengths(world.get(chain_of(tokens(2), profile=other))) == {}


class TestSalt:
    def test_the_same_prompt_under_another_salt_is_another_prompt(
        self, world: World, bystander: Engine
    ) -> None:
        engine = Engine(world)
        salt = make_salt(RING["acme"].salt_key, "acme")
        engine.say(stored([1, 2], tokens(2), extra_keys=[[salt], None]))
        assert lengths(heard(world, engine, bystander)) == {}
        assert lengths(world.get(token_ids=tokens(2), domain="acme", profile=PROFILE.model)) == {"w0": 2}
        engine.say(stored([3], tokens(1), extra_keys=[None]))
        assert lengths(heard(world, engine, bystander)) == {"w0": 1}

    @pytest.mark.parametrize("salt", ["somebody's", "kvl1.acme." + "0" * 32, "kvl1.default.", ""])
    def test_what_has_a_salt_of_nobody_is_answered_to_nobody(
        self, world: World, bystander: Engine, salt: str
    ) -> None:
        engine = Engine(world)
        engine.say(stored([1, 2], tokens(2), extra_keys=[[salt], None]))
        engine.say(stored([3], tokens(1, 2 * SIZE), parent_block_hash=2))
        assert lengths(heard(world, engine, bystander)) == {}
        assert world.view.copies == 1
        stream = next(view for key, view in world.view.streams.items() if key.worker == "w0")
        assert stream.state.holders["gpu"].unassigned == 3

    def test_where_salts_are_required_what_comes_without_is_answered_to_nobody(
        self, world: World, bystander: Engine
    ) -> None:
        """A path that drops the salt on its way mustn't make a tenant's blocks everybody's."""
        engine = Engine(world, config=EngineConfig(content=PROFILE, default_domain=None))
        salt = make_salt(RING["acme"].salt_key, "acme")
        engine.say(stored([1, 2], tokens(2), extra_keys=[[salt], None]))
        engine.say(stored([1], tokens(1), medium="CPU"), stored([8], tokens(1)))
        assert lengths(heard(world, engine, bystander)) == {}
        assert lengths(world.get(token_ids=tokens(2), domain="acme", profile=PROFILE.model)) == {"w0": 2}


class TestGroupsAndRanks:
    GROUPS = (
        Group(index=0, kind=GroupKind.FULL, block_tokens=SIZE),
        Group(index=1, kind=GroupKind.SLIDING_WINDOW, block_tokens=SIZE, window=2 * SIZE),
    )

    def sliding(self, hashes: list[int], covered: list[int], **more: Any) -> dict[str, Any]:
        return stored(
            hashes,
            covered,
            group_idx=1,
            kv_cache_spec_kind="sliding_window",
            kv_cache_spec_sliding_window=2 * SIZE,
            **more,
        )

    def full(self, hashes: list[int], covered: list[int]) -> dict[str, Any]:
        return stored(hashes, covered, group_idx=0, kv_cache_spec_kind="full_attention")

    def test_sparse_groups_count_by_their_own_rule_and_the_least_group_decides(self, world: World) -> None:
        engine = Engine(world, config=EngineConfig(content=PROFILE, groups=self.GROUPS))
        engine.say(self.full([*range(1, 11)], tokens(10)))
        assert world_length(world, engine) == 0
        # As vLLM says it: the last two blocks, no parent, and the tokens of the whole prompt.
        engine.say(self.sliding([9, 10], tokens(10)))
        assert world_length(world, engine) == 10
        engine.say(self.sliding([], tokens(10)))
        assert world_length(world, engine) == 10
        engine.say(removed(9, group_idx=1))
        assert world_length(world, engine) == 0
        engine.say(self.sliding([9], tokens(10)[:-SIZE]), removed(10, group_idx=0))
        engine.say(self.sliding([8], tokens(8)))
        assert world_length(world, engine) == 9

    def test_a_rank_speaks_for_itself_alone(self, world: World) -> None:
        ranks = [Engine(world, "w0", rank) for rank in range(2)]
        for engine in ranks:
            engine.say(stored([1, 2, 3], tokens(3)))
        ranks[1].say(removed(1, 2, 3))
        found = heard(world, *ranks)
        assert [(match.dp_rank, match.matched_blocks) for match in found.matches] == [(0, 3)]
        ranks[0].say({"type": "AllBlocksCleared"})
        ranks[1].say(stored([1], tokens(1)))
        found = heard(world, *ranks)
        assert [(match.dp_rank, match.matched_blocks) for match in found.matches] == [(1, 1)]


def world_length(world: World, engine: Engine) -> int:
    return heard(world, engine, candidates=["w0"]).matches[0].matched_blocks


def test_a_removal_leaves_the_copies_that_are_left(world: World) -> None:
    """A block that was stored twice is in doubt after one removal, and gone after two."""
    engine = Engine(world, config=EngineConfig(content=PROFILE, capacity_blocks={Tier.GPU: 64}))
    engine.say(stored([1, 2], tokens(2)), stored([2], tokens(1, SIZE), parent_block_hash=1))
    engine.say(removed(2))
    assert lengths(heard(world, engine)) == {"w0": 1}
    assert world.view.copies == 2
    engine.say(stored([2], tokens(1, SIZE), parent_block_hash=1))
    assert lengths(heard(world, engine)) == {"w0": 2}
    engine.say(removed(2), removed(2))
    assert world.view.copies == 1


def test_a_clear_ends_everything_in_the_gpu_and_is_not_ignored(world: World) -> None:
    engine = Engine(world)
    engine.say(stored([1, 2], tokens(2)))
    engine.say({"type": "AllBlocksCleared"}, stored([7], tokens(1)))
    found = heard(world, engine)
    assert (lengths(found), found.complete) == ({"w0": 1}, True)


def test_the_log_holds_no_token_in_any_form(world: World) -> None:
    """Tokens that would stand out: neither as numbers, nor as bytes, nor packed."""
    engine = Engine(world)
    said = [4_012_345_678 - n for n in range(2 * SIZE)]
    engine.say(stored([1, 2], said, session_id="s"))
    engine.confirm()
    assert lengths(world.get(token_ids=said, profile=PROFILE.model)) == {"w0": 2}
    log = b"".join(record.value for record in engine.hook.builder.sent)
    for token in said:
        assert str(token).encode() not in log
        for order in ORDERS:
            raw = token.to_bytes(4, order)
            assert raw not in log
            assert raw.hex().encode() not in log
    packed = b"".join(token.to_bytes(4, "little") for token in said)
    assert base64.b64encode(packed)[:40] not in log
