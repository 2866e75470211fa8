"""The client: what it sends, what it raises, when it asks again and when it leaves the service alone."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from events.identity import pack_tokens, profile_digest, root_parent
from router_client.breaker import CircuitBreaker
from router_client.client import RouterClient
from router_client.failure import (
    BoundTooTightError,
    DeniedError,
    RequestError,
    RouterError,
    StaleError,
    TokenAheadError,
    TokenRefusedError,
    TooLargeError,
    UnavailableError,
    UnknownProfileError,
)
from router_client.prefix_memory import PrefixMemory
from router_client.problem import Problem, ProblemKind, problem
from router_client.wire import Answer, Coverage
from tests.support.log import PROFILE
from tests.support.reader_world import RING, chain_of

ANSWER = Answer(
    matches=[],
    excluded=[],
    complete=True,
    coverage=Coverage(included=1, eligible=1),
    as_of=None,
    staleness_ms=1.0,
    token="kvt1.x",
)
PROFILE_ID = profile_digest(PROFILE)


def ok(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, text=ANSWER.model_dump_json())


def refusing(document: Problem) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(document.status, text=document.model_dump_json(exclude_none=True))


def client(handler: Callable[[httpx.Request], httpx.Response], **more: object) -> RouterClient:
    return RouterClient("http://replica", transport=httpx.MockTransport(handler), **more)  # type: ignore[arg-type]


async def test_tokens_go_as_a_binary_body_with_the_rest_in_the_query() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return ok(request)

    async with client(handler, token="secret") as router:
        found = await router.lookup(
            profile="m", token_ids=[1, 2], max_staleness=0.5, candidates=["a", "b"], min_coverage=2
        )
    assert found == ANSWER
    request = seen[0]
    assert request.content == pack_tokens([1, 2])
    assert request.headers["authorization"] == "Bearer secret"
    assert dict(request.url.params)["max_staleness_ms"] == "500.0"
    assert dict(request.url.params)["candidates"] == "a,b"
    assert dict(request.url.params)["min_coverage"] == "2"
    assert "adapter" not in request.url.params


async def test_with_the_id_key_a_prompt_is_hashed_here_and_only_its_new_end() -> None:
    bodies: list[dict[str, object]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return ok(request)

    tokens = list(range(640))
    async with client(handler, id_key=RING["default"].id_key, block_tokens=16) as router:
        await router.lookup(profile=PROFILE_ID, token_ids=tokens[:320], max_staleness=1)
        await router.lookup(profile=PROFILE_ID, token_ids=tokens, max_staleness=1)
        memory = router._memory
        assert memory is not None
        assert memory.hashed_blocks == 40
    assert bodies[1]["block_ids"] == [block.hex() for block in chain_of(tokens)]
    assert "token_ids" not in bodies[1]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (ProblemKind.STALENESS_BOUND_UNMET, StaleError),
        (ProblemKind.BOUND_BELOW_FLOOR, BoundTooTightError),
        (ProblemKind.INDEX_UNAVAILABLE, UnavailableError),
        (ProblemKind.LOG_UNAVAILABLE, UnavailableError),
        (ProblemKind.INTERNAL, UnavailableError),
        (ProblemKind.TOKEN_AHEAD, TokenAheadError),
        (ProblemKind.TOKEN_FOREIGN, TokenRefusedError),
        (ProblemKind.TOKEN_FUTURE, TokenRefusedError),
        (ProblemKind.PROFILE_UNKNOWN, UnknownProfileError),
        (ProblemKind.UNAUTHENTICATED, DeniedError),
        (ProblemKind.FORBIDDEN, DeniedError),
        (ProblemKind.TOO_MANY_BLOCKS, TooLargeError),
        (ProblemKind.TOO_LARGE, TooLargeError),
        (ProblemKind.MALFORMED, RequestError),
        (ProblemKind.BOUND_MISSING, RequestError),
        (ProblemKind.MEDIA_TYPE, RequestError),
    ],
)
async def test_each_problem_has_its_error(kind: ProblemKind, error: type[RouterError]) -> None:
    document = problem(kind, "why", limit=7, floor_ms=300.0, best_achievable_ms=900.0)
    async with client(refusing(document)) as router:
        with pytest.raises(error) as caught:
            await router.lookup(profile="m", token_ids=[1], max_staleness=1)
    assert type(caught.value) is error
    assert caught.value.problem == document


async def test_a_refusal_is_tried_once_more_inside_the_deadline() -> None:
    calls = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += 1
        stale = problem(ProblemKind.STALENESS_BOUND_UNMET, retry_after_ms=20)
        return ok(request) if calls == 2 else refusing(stale)(request)

    async with client(handler) as router:
        assert await router.lookup(profile="m", token_ids=[1], max_staleness=1) == ANSWER
        calls = -10
        with pytest.raises(StaleError):
            await router.lookup(profile="m", token_ids=[1], max_staleness=1)
    assert calls == -8


async def test_a_refusal_whose_retry_lies_beyond_the_deadline_is_raised_at_once() -> None:
    calls = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += 1
        return refusing(problem(ProblemKind.STALENESS_BOUND_UNMET, retry_after_ms=5_000))(request)

    async with client(handler) as router:
        with pytest.raises(StaleError):
            await router.lookup(profile="m", token_ids=[1], max_staleness=1)
    assert calls == 1


async def test_a_service_that_is_away_is_left_alone_after_some_failures() -> None:
    calls = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += 1
        raise httpx.ConnectError("refused")

    async with client(handler) as router:
        for _ in range(9):
            with pytest.raises(UnavailableError):
                await router.lookup(profile="m", token_ids=[1], max_staleness=1)
    assert calls == router.breaker.threshold


@pytest.mark.parametrize("body", ["", "<html>", "{}", '{"matches":1}'])
async def test_a_foreign_answer_is_no_answer(body: str) -> None:
    async with client(lambda request: httpx.Response(200, text=body)) as router:
        with pytest.raises(UnavailableError):
            await router.lookup(profile="m", token_ids=[1], max_staleness=1)


async def test_neither_or_both_of_tokens_and_ids_is_the_callers_fault() -> None:
    async with client(ok) as router:
        with pytest.raises(RequestError):
            await router.lookup(profile="m", max_staleness=1)
        with pytest.raises(RequestError):
            await router.lookup(profile="m", token_ids=[1], block_ids=[bytes(16)], max_staleness=1)


def test_the_breaker_lets_one_try_after_each_pause() -> None:
    breaker = CircuitBreaker(threshold=2, pause_s=1.0, max_pause_s=3.0)
    breaker.failed(0.0)
    assert breaker.allows(0.0)
    breaker.failed(0.0)
    assert not breaker.allows(0.9)
    assert breaker.allows(1.0)
    assert not breaker.allows(1.0)
    breaker.failed(1.0)
    assert not breaker.allows(2.9)
    assert breaker.allows(3.0)
    breaker.abandoned()
    assert breaker.allows(3.0)
    breaker.failed(3.0)
    assert not breaker.allows(5.9)
    assert breaker.allows(6.0)
    breaker.succeeded()
    assert breaker.allows(6.0)
    assert breaker.allows(6.0)


def test_prefix_memory_equals_hashing_anew_for_branching_chats() -> None:
    memory = PrefixMemory(RING["default"].id_key, max_bytes=6_000)
    hasher = RING["default"].hasher()
    base = list(range(200))
    prompts = [
        base[:50],
        base,
        base[:100] + [7] * 60,
        base[:100] + [7] * 90,
        [9] * 40,
        base[:16],
        base[:10],
        [],
    ]
    for tokens in prompts * 2:
        expected = hasher.chain(root_parent(PROFILE_ID), pack_tokens(tokens), 16)
        assert memory.ids(PROFILE_ID, tokens, 16) == expected
        assert memory.ids(PROFILE_ID, pack_tokens(tokens), 16) == expected
        assert memory.held_bytes <= 6_000


def test_prefix_memory_keeps_one_bound_over_all_prompts() -> None:
    memory = PrefixMemory(RING["default"].id_key, max_bytes=100_000)
    for start in range(300):
        for end in range(12):
            memory.ids(PROFILE_ID, [start] * 400 + [end] * 400, 16)
            held = [prompt for prompts in memory._starts.values() for prompt in prompts]
            real = sum(len(prompt.tokens) + 57 * len(prompt.chain) for prompt in held)
            assert real <= memory.held_bytes <= 100_000
    before = memory.hashed_blocks
    memory.ids(PROFILE_ID, [299] * 400 + [11] * 400 + [5] * 16, 16)
    assert memory.hashed_blocks == before + 1
    memory.ids(PROFILE_ID, list(range(50_000)), 16)
    assert memory.held_bytes > 0


@pytest.mark.parametrize("url", ["127.0.0.1:8400", "localhost", "tcp://127.0.0.1:8400", "http://", ""])
def test_a_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(RequestError, match="http://"):
        RouterClient(url)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            problem(
                ProblemKind.STALENESS_BOUND_UNMET, bound_ms=50.0, floor_ms=300.0, best_achievable_ms=900.0
            ),
            ("asked for 50 ms", "best achievable now 900 ms", "never below 300 ms", "route without a hint"),
        ),
        (problem(ProblemKind.BOUND_BELOW_FLOOR, floor_ms=300.0), ("at least 300 ms",)),
        (problem(ProblemKind.PROFILE_UNKNOWN, "why"), ("'my-model'", "http://replica", "why")),
        (problem(ProblemKind.INTERNAL), ("http://replica", "status 500", "route without a hint")),
        (problem(ProblemKind.MALFORMED, "why", field="limit"), ("limit: why",)),
    ],
)
async def test_an_error_says_what_to_do_next(document: Problem, said: tuple[str, ...]) -> None:
    async with client(refusing(document)) as router:
        with pytest.raises(RouterError) as caught:
            await router.lookup(profile="my-model", token_ids=[1], max_staleness=1)
    assert [part for part in said if part not in str(caught.value)] == []


async def test_a_service_that_is_away_is_named_without_the_urls_credentials() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    transport = httpx.MockTransport(refuse)
    async with RouterClient("http://me:hunter2@replica:8400", transport=transport) as router:
        with pytest.raises(UnavailableError, match=r"http://replica:8400 .*ConnectError: refused") as caught:
            await router.lookup(profile="m", token_ids=[1], max_staleness=1)
    assert "hunter2" not in str(caught.value)


async def test_a_foreign_answer_is_told_by_its_field() -> None:
    async with client(lambda request: httpx.Response(200, text='{"matches":1}')) as router:
        with pytest.raises(UnavailableError, match=r"http://replica .*matches: "):
            await router.lookup(profile="m", token_ids=[1], max_staleness=1)
