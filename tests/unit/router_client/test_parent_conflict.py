"""Whoever names a wrong parent first may cost others hits, for as long as it holds the block, but no answer
claims that there is nothing more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.fold.registry import Registry
from events.ids import ExcludeReason, Role, StreamKey
from events.model.batch import ControlPosition
from events.model.control import ExitAttested, Fenced, Registered
from events.signing import Signer
from router_client.index import PrefixIndex
from tests.support.log import StreamBuilder
from tests.support.reader_world import Hook, World, chain_of, lengths, reasons

CHAIN = chain_of(range(64))


def contradicted() -> tuple[World, Hook, Hook]:
    """`a` says that block 2 continues block 0, before the honest `b` stores the chain."""
    world = World()
    a, b = world.join("a"), world.join("b")
    a.store(CHAIN[2:3], CHAIN[0])
    b.store(CHAIN)
    world.round(a, b)
    return world, a, b


def settle(world: World) -> None:
    while not world.view.work(1_000):
        pass


def test_a_match_that_a_contradiction_cuts_is_a_floor() -> None:
    world, _, _ = contradicted()
    found = world.get(CHAIN)
    assert lengths(found) == {"b": 2}
    assert [match.inventory for match in found.matches] == ["partial"]
    assert not found.complete
    assert world.view.index.conflicts == 1
    assert world.view.held()["refused_stores"][0] == 1


def test_whoever_is_not_contradicted_is_known_whole() -> None:
    world, _, _ = contradicted()
    c = world.join("c")
    c.store(CHAIN[:2])
    world.round(c)
    assert {match.worker: match.inventory for match in world.get(CHAIN).matches} == {
        "b": "partial",
        "c": "known",
    }


@pytest.mark.parametrize("how", ["evicted", "fenced", "ended", "superseded", "shed"])
def test_what_was_refused_counts_once_the_contradiction_is_gone(how: str) -> None:
    world, a, b = contradicted()
    others = []
    match how:
        case "evicted":
            a.evict(CHAIN[2:3])
            others = [a]
        case "fenced":
            world.order(Fenced(worker="a", rank=0, epoch="e1", evidence="operator"))
        case "ended":
            world.order(
                ExitAttested(worker="a", engine_life="life-e1", attester="s", evidence="w"), Role.SUPERVISOR
            )
        case "superseded":
            others = [world.join("a", 0, "e2")]
        case _:
            view = world.view.streams[StreamKey("a", 0, "e1")]
            world.view._shed(view)
    settle(world)
    world.round(b, *others)
    found = world.get(CHAIN)
    assert lengths(found) == {"b": 4}
    assert [match.inventory for match in found.matches] == ["known"]
    assert found.complete is (how != "shed")
    assert (world.view.index.refused.bits, world.view.held()["refused_stores"][0]) == (0, 0)


def test_a_refused_block_that_is_evicted_leaves_nothing_to_declare() -> None:
    world, a, b = contradicted()
    b.evict(CHAIN[2:])
    world.round(a, b)
    found = world.get(CHAIN)
    assert (lengths(found), found.complete) == ({"b": 2}, True)
    assert not world.view.index.refused.bits


def test_a_stream_that_nobody_registered_stands_in_nobodys_way() -> None:
    world = World()
    b = world.join("b")
    nobody = Hook(world, StreamBuilder("nobody", 0, "e9", 10**6, bytes(32)), b.key)
    nobody.open()
    nobody.store(CHAIN[2:3], CHAIN[0])
    b.store(CHAIN)
    world.round(b)
    found = world.get(CHAIN)
    assert (lengths(found), found.complete) == ({"b": 4}, True)
    assert reasons(found) == {"nobody": ExcludeReason.UNREGISTERED.value}
    assert world.view.index.conflicts == 0


def test_a_stream_counts_from_its_registration_with_what_was_read_before() -> None:
    world = World()
    b = world.join("b")
    b.store(CHAIN[:1])
    key = Signer.from_seed(b"k" * 32)
    number = len(world.log.records)
    body = Registered(
        worker="c", rank=0, epoch="e1", engine_life="life-1", public_key=key.public_key, partition=0
    )
    world.log.append(body, Role.ENROLMENT)
    ahead = Registry(world.registry.verify)
    for offset, (value, signature) in enumerate(world.log.records):
        ahead.fold(offset, value, signature)
    stream = StreamKey("c", 0, "e1")
    registered = ahead.registrations[stream].record_sha256
    control = ControlPosition(offset=number, hash=ahead.hash)
    early = Hook(world, StreamBuilder("c", 0, "e1", number, registered, control=control), key)
    early.open()
    early.store(CHAIN[:3])
    view = world.view.streams[stream]
    assert view.layout is None
    assert len(world.view.index) == 1
    world.follow_control()
    assert view.layout is not None
    early.store(CHAIN[3:], CHAIN[2])
    world.round(b, early)
    found = world.get(CHAIN)
    assert (lengths(found), found.complete) == ({"b": 1, "c": 4}, True)


HOLDERS, BLOCKS, PARENTS = 3, 4, 3
words = st.lists(
    st.tuples(
        st.integers(0, HOLDERS - 1),
        st.integers(0, BLOCKS - 1),
        st.one_of(st.none(), st.integers(0, PARENTS - 1)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(words)
def test_every_store_is_indexed_or_declared_and_none_waits_for_nobody(
    said: list[tuple[int, int, int | None]],
) -> None:
    """Holders name any parents. Who isn't contradicted is indexed; a block under its only parent always is."""
    index = PrefixIndex()
    bits = [index.new_bit() for _ in range(HOLDERS)]
    held: dict[tuple[int, int], int] = {}
    for holder, block, parent in said:
        name = bytes([block + 1]) * 16
        if parent is None:
            index.evict(bits[holder], [name])
            held.pop((holder, block), None)
        elif (holder, block) not in held:
            index.store(bits[holder], [name], [bytes([200 + parent]) * 16])
            held[holder, block] = parent
        refused = 0
        for each in range(BLOCKS):
            claims = {h: p for (h, b), p in held.items() if b == each}
            name = bytes([each + 1]) * 16
            mask = index.holds(name)
            indexed = {h for h in claims if mask & bits[h]}
            assert mask == sum(bits[h] for h in indexed)
            assert bool(indexed) == bool(claims)
            stands = {claims[h] for h in indexed}
            assert len(stands) <= 1
            assert all(p not in stands for h, p in claims.items() if h not in indexed)
            for h in claims.keys() - indexed:
                refused |= bits[h]
        assert index.refused.bits == refused
