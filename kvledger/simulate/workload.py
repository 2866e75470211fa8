"""A seeded multi-tenant workload: growing chats and agent loops over shared system prompts, with bursts.

The same settings and seed give the same requests on every machine and Python. It stands in for a recorded
trace: tenants and their applications are Zipf-popular, an application's system prompt (an agent's is long:
it holds the tools) is shared by its sessions, each turn repeats all before it, and arrivals alternate
between calm and bursts.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from kvledger.simulate.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """What the generator makes; rates are sessions a second, sizes are tokens."""

    requests: int = 2000
    tenants: Sequence[str] = ("acme", "globex", "initech", "umbrella")
    applications_per_tenant: int = 3
    agent_share: float = 0.35
    zipf_exponent: float = 1.1
    block_tokens: int = 64
    sessions_per_s: float = 2.0
    burst_factor: float = 6.0
    burst_s: float = 4.0
    calm_s: float = 20.0
    max_context_tokens: int = 32_000
    seed: int = 1


@dataclass(slots=True)
class _Application:
    tenant: str
    is_agent: bool
    system_ids: tuple[int, ...]


@dataclass(slots=True)
class _Session:
    name: str
    application: _Application
    ids: list[int]
    tokens: int
    turns_left: int


def generate(settings: WorkloadSettings) -> Iterator[TraceRequest]:
    """Yield exactly `settings.requests` requests by arrival; raises `ValueError` on impossible settings."""
    if (
        settings.requests < 0
        or settings.block_tokens < 1
        or not settings.tenants
        or settings.sessions_per_s <= 0
    ):
        raise ValueError("a workload needs requests >= 0, block_tokens >= 1, a tenant and a session rate")
    return _Generator(settings).run()


class _Generator:
    def __init__(self, settings: WorkloadSettings) -> None:
        self._settings = settings
        self._random = Random(settings.seed)
        self._next_id = 0
        self._tenant_steps = _zipf(len(settings.tenants), settings.zipf_exponent)
        per_tenant = max(1, settings.applications_per_tenant)
        self._application_steps = _zipf(per_tenant, settings.zipf_exponent)
        self._applications = [
            [self._application(tenant) for _ in range(per_tenant)] for tenant in settings.tenants
        ]

    def run(self) -> Iterator[TraceRequest]:
        arrivals = self._arrivals()
        opened = 0
        next_open_s = next(arrivals)
        due: list[tuple[float, int, _Session]] = []
        for made in range(self._settings.requests):
            if not due or next_open_s <= due[0][0]:
                now_s, session = next_open_s, self._open(opened)
                opened += 1
                next_open_s = next(arrivals)
            else:
                now_s, _, session = heapq.heappop(due)
            request = self._turn(now_s, session)
            if session.turns_left > 0:
                heapq.heappush(due, (now_s + self._pause_s(session, request.output_tokens), made, session))
            yield request

    def _arrivals(self) -> Iterator[float]:
        """A Poisson stream whose rate jumps by `burst_factor` in bursts, with the same mean over all."""
        s = self._settings
        calm_rate = s.sessions_per_s * (s.calm_s + s.burst_s) / (s.calm_s + s.burst_factor * s.burst_s)
        now_s = 0.0
        while True:
            for length_s, rate in ((s.calm_s, calm_rate), (s.burst_s, calm_rate * s.burst_factor)):
                end_s = now_s + self._random.expovariate(1 / length_s)
                while (now_s := now_s + self._random.expovariate(rate)) < end_s:
                    yield now_s
                now_s = end_s

    def _application(self, tenant: str) -> _Application:
        is_agent = self._random.random() < self._settings.agent_share
        tokens = self._random.randrange(3000, 9000) if is_agent else self._random.randrange(300, 1800)
        return _Application(tenant, is_agent, self._new_ids(max(1, tokens // self._settings.block_tokens)))

    def _open(self, number: int) -> _Session:
        tenant = self._pick(self._tenant_steps)
        application = self._applications[tenant][self._pick(self._application_steps)]
        turns = self._geometric(12.0 if application.is_agent else 4.0)
        ids = list(application.system_ids)
        return _Session(f"s{number}", application, ids, len(ids) * self._settings.block_tokens, turns)

    def _turn(self, now_s: float, session: _Session) -> TraceRequest:
        agent = session.application.is_agent
        asked = self._size(600 if agent else 120)
        answered = self._size(90 if agent else 220)
        block = self._settings.block_tokens
        prompt_tokens = session.tokens + asked
        session.tokens = prompt_tokens + answered
        session.ids.extend(self._new_ids(-(-session.tokens // block) - len(session.ids)))
        session.turns_left -= 1
        if session.tokens > self._settings.max_context_tokens:
            session.turns_left = 0
        prompt_blocks = -(-prompt_tokens // block)
        return TraceRequest(
            now_s,
            session.name,
            session.application.tenant,
            tuple(session.ids[:prompt_blocks]),
            prompt_tokens,
            answered,
            block,
            tuple(session.ids[prompt_blocks:]),
        )

    def _pause_s(self, session: _Session, output_tokens: int) -> float:
        think_s = 0.8 if session.application.is_agent else 9.0
        return output_tokens * 0.02 + self._random.expovariate(1 / think_s)

    def _new_ids(self, count: int) -> tuple[int, ...]:
        first = self._next_id
        self._next_id += max(0, count)
        return tuple(range(first, self._next_id))

    def _size(self, mean: float) -> int:
        return 1 + int(self._random.gammavariate(1.5, mean / 1.5))

    def _geometric(self, mean: float) -> int:
        return 1 + int(self._random.expovariate(1 / mean))

    def _pick(self, steps: list[float]) -> int:
        return bisect_left(steps, self._random.random() * steps[-1])


def _zipf(count: int, exponent: float) -> list[float]:
    return list(accumulate((rank + 1) ** -exponent for rank in range(count)))
