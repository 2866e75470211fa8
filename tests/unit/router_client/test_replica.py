"""Several readers of one log, and readers that start over: same answers at the same position, and never too early."""

from __future__ import annotations

import random

import pytest

from events.codec import dump
from events.fold.registry import Registry
from events.ids import Role
from events.model.control import ExitAttested
from events.model.signal import Beacon, Echo
from events.signing import verify
from router_client.answer import answer
from router_client.problem import Problem, ProblemKind
from router_client.query import Query, make_query
from router_client.view import LocalView
from router_client.wire import Answer, LookupRequest
from tests.support.log import PROFILE
from tests.support.reader_world import MS, RING, Hook, World, chain_of, lengths, reasons

TOKENS = list(range(640))
CHAIN = chain_of(TOKENS)


def question(**more: object) -> Query:
    fields: dict[str, object] = {"profile": PROFILE.model, "token_ids": TOKENS, "consistency": "any"} | more
    query = make_query(LookupRequest.model_validate(fields, strict=False), "default")
    assert not isinstance(query, Problem)
    return query


def replica(world: World, reader: str = "reader") -> LocalView:
    """A reader of the same log that has read nothing yet."""
    registry = Registry(verify)
    return LocalView(reader=reader, registry=registry, keyring=RING, control_current_ns=lambda: world.now_ns)


def read_control(view: LocalView, world: World, until: int | None = None) -> None:
    for offset in range(view.registry.next_offset, len(world.log.records) if until is None else until):
        value, signature = world.log.records[offset]
        view.control_folded(*view.registry.fold(offset, value, signature))


def written(world: World, *hooks: Hook) -> list[list[bytes]]:
    """What each hook has sent, in a partition of its own."""
    del world
    return [[record.value for record in hook.builder.sent] for hook in hooks]


@pytest.mark.parametrize("seed", range(5))
def test_two_replicas_answer_alike_at_one_token_however_the_log_reached_them(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    hooks = [world.join(f"w{n}") for n in range(3)]
    for n, hook in enumerate(hooks):
        for depth in range(4 * n + 3):
            hook.store(CHAIN[depth : depth + 1], CHAIN[depth - 1] if depth else None)
    hooks[1].evict(CHAIN[5:6])
    world.order(ExitAttested(worker="w0", engine_life="life-e1", attester="s", evidence="w"), Role.SUPERVISOR)
    found: list[Answer] = []
    for _ in range(2):
        view, logs = replica(world), written(world, *hooks)
        # Nobody waits for another topic: kv.control arrives in two pieces among the records.
        read_control(view, world, until=rng.randrange(1, len(world.log.records)))
        order = [0] * len(logs[0]) + [1] * len(logs[1]) + [2] * len(logs[2])
        rng.shuffle(order)
        for n in order:
            view.apply_record(0, view.position(0), logs[n].pop(0), world.now_ns)
        read_control(view, world)
        view.caught_up = True
        one = answer(view, question(), world.now_ns, 0)
        assert isinstance(one, Answer), one
        found.append(one)
    assert found[0] == found[1]
    assert lengths(found[0]) == {"w1": 5, "w2": 11}


def test_a_token_of_one_replica_is_reached_on_another_or_refused_there() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:3])
    behind = replica(world)
    read_control(behind, world)
    behind.apply_record(0, 0, hook.builder.sent[0].value, world.now_ns)
    asked = question(min_token=world.view.token(), min_coverage=0)
    refused = answer(behind, asked, world.now_ns, 0)
    assert isinstance(refused, Problem)
    assert refused.kind is ProblemKind.TOKEN_AHEAD
    behind.apply_record(0, 1, hook.builder.sent[1].value, world.now_ns)
    assert behind.token() == world.view.token()
    assert isinstance(answer(behind, asked, world.now_ns, 0), Answer)


def test_a_reader_that_starts_over_claims_nothing_until_its_own_beacon_was_echoed() -> None:
    """Echoes of what an earlier process wrote, or of anybody else, say nothing about the new one's age."""
    world = World()
    hook = world.join()
    hook.store(CHAIN[:3])
    world.round(hook)
    old = world.newest
    assert lengths(world.get(CHAIN)) == {"w0": 3}

    view = replica(world, reader="reader-2")
    asked = question(consistency=None, max_staleness_ms=1_000)
    first = answer(view, asked, world.now_ns, 0)
    assert isinstance(first, Problem)
    assert first.kind is ProblemKind.INDEX_UNAVAILABLE
    read_control(view, world)
    for offset, record in enumerate(hook.builder.sent):
        early = answer(view, asked, world.now_ns, 0)
        assert isinstance(early, Problem)
        assert early.status == 503
        view.apply_record(0, offset, record.value, world.now_ns)
    view.caught_up = True
    assert old is not None
    view.apply_pulse(hook.pulse(echo=old), world.now_ns)
    late = answer(view, asked, world.now_ns, 0)
    assert isinstance(late, Problem)
    assert late.kind is ProblemKind.STALENESS_BOUND_UNMET

    nonce = b"n" * 16
    view.book.began(nonce, world.now_ns)
    view.apply_signal(old.offset + 1, dump(Beacon(reader="reader-2", nonce=nonce)), world.now_ns)
    world.wait(40)
    view.apply_pulse(hook.pulse(echo=Echo(offset=old.offset + 1, nonce=nonce)), world.now_ns)
    found = answer(view, asked, world.now_ns, 0)
    assert isinstance(found, Answer)
    assert (lengths(found), found.staleness_ms, found.complete) == ({"w0": 3}, 40, True)


def test_a_replica_that_is_half_way_through_the_log_says_whom_it_lacks() -> None:
    world = World()
    first, second = world.join("first"), world.join("second")
    for hook in (first, second):
        hook.store(CHAIN[:4])
        hook.store(CHAIN[4:8], CHAIN[3])
    view = replica(world)
    read_control(view, world)
    view.newest_signal = 0
    view.book.began(b"n" * 16, world.now_ns)
    view.book.read_back(0, "reader", b"n" * 16)
    echo = Echo(offset=0, nonce=b"n" * 16)
    asked = question(consistency=None, max_staleness_ms=1_000)
    seen: list[tuple[dict[str, int], dict[str, str], bool]] = []
    records = [record.value for hook in (first, second) for record in hook.builder.sent]
    for offset, value in enumerate(records):
        view.apply_record(0, offset, value, world.now_ns)
        for hook in (first, second):
            view.apply_pulse(hook.pulse(echo=echo), world.now_ns + MS)
        found = answer(view, asked, world.now_ns, 0)
        if isinstance(found, Answer):
            seen.append((lengths(found), reasons(found), found.complete))
        else:
            assert found.status == 503
    assert seen == [
        ({"first": 8}, {"second": "unopened"}, False),
        ({"first": 8}, {"second": "stale"}, False),
        ({"first": 8}, {"second": "stale"}, False),
        ({"first": 8, "second": 8}, {}, True),
    ]
