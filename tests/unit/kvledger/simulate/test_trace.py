"""Traces: both forms read the same, bad lines are named, the real trace has its known facts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from kvledger.simulate.trace import TraceError, TraceRequest, TraceSurvey, read_trace, survey_trace
from kvledger.simulate.workload import WorkloadSettings, generate

TRACES = Path(__file__).resolve().parents[5] / "shared" / "data" / "traces"
MOONCAKE = {"timestamp": 3000, "input_length": 1030, "output_length": 7, "hash_ids": [5, 6, 9]}
RUNS = {"t": 3.0, "s": None, "in": 1030, "out": 7, "blk": 512, "runs": [[5, 2], [9, 1]]}


def written(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_both_forms_give_the_same_request(tmp_path: Path) -> None:
    expected = TraceRequest(3.0, None, "default", (0, 1, 2), 1030, 7, 512)
    assert list(read_trace(written(tmp_path / "m.jsonl", MOONCAKE))) == [expected]
    assert list(read_trace(written(tmp_path / "r.jsonl", RUNS))) == [expected]


def test_gzip_is_seen_by_content_not_by_name(tmp_path: Path) -> None:
    packed = tmp_path / "trace.jsonl"
    packed.write_bytes(gzip.compress(json.dumps(MOONCAKE).encode()))
    assert [r.input_tokens for r in read_trace(packed)] == [1030]


def test_equal_ids_stay_equal_and_dense(tmp_path: Path) -> None:
    other = MOONCAKE | {"hash_ids": [5, 2**63, 9]}
    first, second = read_trace(written(tmp_path / "m.jsonl", MOONCAKE, other))
    assert (first.prefix_ids, second.prefix_ids) == ((0, 1, 2), (0, 3, 2))


def test_session_ids_are_its_own_but_for_the_shared_head(tmp_path: Path) -> None:
    head = {"t": 0, "in": 128, "out": 1, "blk": 64, "runs": [[1, 2]], "tool": 40, "sys": 30}
    a, b = head | {"s": "a"}, head | {"s": "b"}
    c = head | {"s": "c", "tool": 41, "sys": 29}
    got = [r.prefix_ids for r in read_trace(written(tmp_path / "r.jsonl", a, b, c))]
    assert got == [(0, 1), (0, 2), (3, 4)]


def test_a_conversation_stays_in_one_tenant(tmp_path: Path) -> None:
    records = [
        MOONCAKE | {"input_length": 512 * 3, "hash_ids": [0, root, 100 + root * 10 + turn]}
        for root in range(1, 9)
        for turn in range(3)
    ]
    tenants = ["a", "b", "c"]
    got = [r.tenant for r in read_trace(written(tmp_path / "m.jsonl", *records), tenants=tenants)]
    assert all(len(set(got[i : i + 3])) == 1 for i in range(0, len(got), 3))
    assert len(set(got)) > 1
    named = written(tmp_path / "n.jsonl", MOONCAKE | {"tenant": "own"})
    assert [r.tenant for r in read_trace(named, tenants=tenants)] == ["own"]


def test_limit_reads_no_further(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl", MOONCAKE, "bad")
    assert len(list(read_trace(path, limit=1))) == 1


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ([1], "a list"),
        ({}, "neither hash_ids"),
        (MOONCAKE | {"hash_ids": [1, 2]}, None),
        (MOONCAKE | {"hash_ids": [1]}, "1 ids don't cover 1030 tokens"),
        (MOONCAKE | {"hash_ids": 3}, "not a list"),
        (MOONCAKE | {"hash_ids": [1, 2, -3]}, "hash_ids holds -3"),
        (MOONCAKE | {"hash_ids": [1, 2, True]}, "hash_ids holds True"),
        (MOONCAKE | {"input_length": 0}, "input_length is 0"),
        (MOONCAKE | {"input_length": "9"}, "input_length is '9'"),
        (MOONCAKE | {"output_length": -1}, "output_length is -1"),
        (MOONCAKE | {"timestamp": None}, "timestamp is None"),
        (MOONCAKE | {"timestamp": float("nan")}, "timestamp is nan"),
        (RUNS | {"runs": [[5, 10**12]]}, "a run of 1000000000000"),
        (RUNS | {"runs": [[5]]}, r"a run is \[first id, count\]"),
        (RUNS | {"blk": 0}, "blk is 0"),
        (RUNS | {"s": 5}, "s is 5"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, record: object, reason: str | None) -> None:
    path = written(tmp_path / "t.jsonl", MOONCAKE, record)
    if reason is None:
        assert len(list(read_trace(path))) == 2
        return
    with pytest.raises(TraceError, match=reason) as caught:
        list(read_trace(path))
    assert (caught.value.path, caught.value.line) == (str(path), 2)


@pytest.mark.parametrize("content", [b"{not json\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n"])
def test_garbage_is_a_trace_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"t\.jsonl:1: not JSON"):
        list(read_trace(path))


def test_damaged_missing_and_empty_files_are_trace_errors(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(MOONCAKE).encode() * 100)
    for name, content in {
        "cut": packed[:-12],
        "flipped": packed[:12] + b"\xff\xff" + packed[14:],
        "empty": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TraceError):
            list(read_trace(tmp_path / name))
    with pytest.raises(TraceError, match="No such file"):
        list(read_trace(tmp_path / "absent"))


def infinite_cache(requests: Iterator[TraceRequest]) -> tuple[int, int, int, int]:
    """Requests, block references, distinct blocks, references that a cache without end would have hit."""
    seen: set[int] = set()
    count = references = hits = 0
    for request in requests:
        count += 1
        references += len(request.prefix_ids)
        hits += next((i for i, b in enumerate(request.prefix_ids) if b not in seen), len(request.prefix_ids))
        seen.update(request.prefix_ids)
    return count, references, len(seen), hits


if TRACES.is_dir():
    # Recorded traces aren't part of this repository; where they lie beside it they are checked as well.
    @pytest.mark.parametrize(
        ("name", "facts"),
        [
            ("mooncake_conversation.jsonl.gz", (12_031, 288_500, 182_790, 0.366)),
            ("mooncake_synthetic.jsonl.gz", (3_993, 121_877, 43_924, 0.640)),
        ],
    )
    def test_recorded_trace_has_its_known_facts(name: str, facts: tuple[int, int, int, float]) -> None:
        count, references, unique, hits = infinite_cache(read_trace(TRACES / name))
        assert (count, references, unique, round(hits / references, 3)) == facts

    def test_agent_sessions_read_whole() -> None:
        path = TRACES / "agentic_coding.jsonl.gz"
        count, references, unique, hits = infinite_cache(read_trace(path, limit=300))
        assert (count, hits + unique) == (300, references)
        assert hits / references > 0.8


def test_generated_workload_stands_in_for_a_recorded_one() -> None:
    requests = list(generate(WorkloadSettings(requests=4000)))
    count, references, unique, hits = infinite_cache(iter(requests))
    assert count == 4000
    assert hits + unique == references
    assert 0.3 < hits / references < 0.99
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(requests))


def test_survey_counts_requests_and_names_their_tenants(tmp_path: Path) -> None:
    lines = [
        {"timestamp": n, "input_length": 512, "output_length": 1, "hash_ids": [n], "tenant": tenant}
        for n, tenant in enumerate(("b", "a", "b"))
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert survey_trace(path, tenants=("x",)) == TraceSurvey(3, ("b", "a"))
    assert survey_trace(path, tenants=("x",), limit=1) == TraceSurvey(1, ("b",))
    path.write_text(json.dumps({**lines[0], "tenant": "no good"}) + "\n")
    with pytest.raises(TraceError, match="can't name a domain"):
        survey_trace(path, tenants=("x",))
