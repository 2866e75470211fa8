"""The generated workload is repeatable and has the shape it claims."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from statistics import mean, pvariance

import pytest

from kvledger.simulate.trace import TraceRequest
from kvledger.simulate.workload import WorkloadSettings, generate


def by_session(requests: list[TraceRequest]) -> dict[str, list[TraceRequest]]:
    sessions: dict[str, list[TraceRequest]] = defaultdict(list)
    for request in requests:
        assert request.session is not None
        sessions[request.session].append(request)
    return sessions


def test_same_seed_same_requests_other_seed_others() -> None:
    first, again, other = (list(generate(WorkloadSettings(requests=200, seed=seed))) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_ids_cover_prompt_and_answer_exactly() -> None:
    for request in generate(WorkloadSettings(requests=500, block_tokens=16)):
        assert len(request.prefix_ids) == -(-request.input_tokens // 16)
        both = request.input_tokens + request.output_tokens
        assert len(request.prefix_ids + request.output_ids) == -(-both // 16)


def test_each_turn_repeats_all_before_it() -> None:
    sessions = by_session(list(generate(WorkloadSettings(requests=1500))))
    assert max(map(len, sessions.values())) > 5
    for turns in sessions.values():
        for before, after in itertools.pairwise(turns):
            known = before.prefix_ids + before.output_ids
            assert after.prefix_ids[: len(known)] == known
            assert after.arrival_s > before.arrival_s


def test_sessions_of_an_application_share_its_system_prompt_and_tenants_share_nothing() -> None:
    requests = list(generate(WorkloadSettings(requests=1500)))
    tenants_of: dict[int, set[str]] = defaultdict(set)
    roots: Counter[int] = Counter()
    for turns in by_session(requests).values():
        roots[turns[0].prefix_ids[0]] += 1
    for request in requests:
        for ident in request.prefix_ids:
            tenants_of[ident].add(request.tenant)
    assert all(len(tenants) == 1 for tenants in tenants_of.values())
    assert len(roots) <= 12
    assert roots.most_common(1)[0][1] > 2 * mean(roots.values())


def test_arrivals_come_in_bursts() -> None:
    requests = list(generate(WorkloadSettings(requests=6000)))
    opened = [turns[0].arrival_s for turns in by_session(requests).values()]
    per_second = Counter(int(at) for at in opened)
    counts = [per_second[second] for second in range(int(max(opened)))]
    assert pvariance(counts) > 2 * mean(counts)


@pytest.mark.parametrize(
    "bad", [{"requests": -1}, {"block_tokens": 0}, {"tenants": ()}, {"sessions_per_s": 0.0}]
)
def test_impossible_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="a workload needs"):
        next(generate(WorkloadSettings(**bad)))  # type: ignore[arg-type]
