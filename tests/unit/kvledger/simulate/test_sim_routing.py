"""Routing comparisons are exact, repeatable, and bounded by the infinite cache and the oracle."""

from __future__ import annotations

from kvledger.simulate.routing import longest_prefix, simulate_round_robin, simulate_routing
from kvledger.simulate.trace import TraceRequest
from kvledger.simulate.workload import WorkloadSettings, generate


def test_round_robin_hits_are_counted_in_tokens() -> None:
    asked = TraceRequest(0, None, "t", (1, 2, 3), 40, 1, 16)
    total = simulate_round_robin([asked] * 5, workers=2, capacity_blocks=10)
    assert (total.requests, total.asked_tokens, total.hit_tokens) == (5, 200, 3 * 32)
    assert total.rate == 96 / 200


def test_nothing_asked_is_a_rate_of_zero() -> None:
    assert simulate_round_robin([], workers=1, capacity_blocks=1).rate == 0.0


def test_prompt_that_fits_nowhere_is_counted_apart() -> None:
    total = simulate_round_robin([TraceRequest(0, None, "t", (1, 2), 32, 1, 16)], 1, 1)
    assert (total.requests, total.too_long, total.asked_tokens) == (0, 1, 0)


def test_knowing_where_prefixes_are_beats_round_robin() -> None:
    requests = list(generate(WorkloadSettings(requests=800)))
    rates = [
        simulate_routing(requests, 4, 2000, choose).rate for choose in (longest_prefix, longest_prefix)
    ] + [simulate_round_robin(requests, 4, 2000).rate, simulate_round_robin(requests, 1, 10**6).rate]
    assert rates[0] == rates[1]
    assert rates[2] + 0.05 < rates[0] <= rates[3]
