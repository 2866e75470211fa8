"""`kvledger demo` and `kvledger simulate` as a person runs them: a stack of their own, and nothing left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from kvledger.failure import ExitCode
from kvledger.stack.plan import Extent
from kvledger.stack.session import running_stack
from tests.support.command import KVLEDGER, environment, failure, kvledger
from tests.support.process import processes_of, wait_until
from tests.support.stack import stack_settings

KEYS = {
    "requests",
    "events",
    "blocks_stored",
    "hit_rate",
    "round_robin_hit_rate",
    "wrong_unflagged",
    "lookups",
    "lookups_refused",
    "lookup_p50_ms",
    "lookup_p99_ms",
    "visible_p50_ms",
    "visible_p99_ms",
    "verdict",
}


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def test_demo_runs_whole_and_finds_no_wrong_answer(home: Path, cwd: Path) -> None:
    done = subprocess.run(
        [*KVLEDGER, "demo", "--requests", "150", "--workers", "3", "--json"],
        env=environment(home),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary.keys() >= KEYS
    assert summary["requests"] == 150
    assert summary["lookups"] >= 150
    assert summary["lookups_refused"] >= 1
    assert (summary["wrong_unflagged"], summary["verdict"]) == (0, "PROVEN")
    assert summary["hit_rate"] > summary["round_robin_hit_rate"]
    assert 0 < summary["visible_p50_ms"] <= summary["visible_p99_ms"]
    for scene in (
        "A bounded lookup, and a refused one",
        "/problems/staleness-bound-unmet",
        "A worker restarts",
        "A record is lost",
        "excluded, reason gap",
        "A tenant over its quota",
        "over_hard_limit",
        "A deletion, and its proof",
        "signed by auditor",
    ):
        assert scene in done.stderr
    assert processes_of(home) == {}
    assert kvledger("down", "--wipe", home=home, folder=cwd).returncode == 0
    assert not home.exists()


def test_a_bad_trace_is_named_with_its_line_before_anything_starts(home: Path, cwd: Path) -> None:
    (cwd / "bad.jsonl").write_text(
        '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n{"timestamp": 1}\n'
    )
    done = kvledger("demo", "--trace", "bad.jsonl", home=home, folder=cwd)
    assert "bad.jsonl:2: " in failure(done)
    assert not home.exists()


def test_interrupted_demo_leaves_no_process_behind(home: Path, cwd: Path) -> None:
    with (
        (cwd / "out").open("wb") as out,
        subprocess.Popen(
            [*KVLEDGER, "demo", "--requests", "100000", "--rate", "20", "--workers", "2"],
            env=environment(home, PYTHONUNBUFFERED="1"),
            cwd=cwd,
            stdout=out,
            stderr=out,
        ) as demo,
    ):
        try:
            wait_until(
                lambda: b"Each request is routed" in (cwd / "out").read_bytes() or demo.poll() is not None,
                timeout_s=150,
            )
            assert demo.poll() is None, (cwd / "out").read_text()
            demo.send_signal(signal.SIGINT)
            assert demo.wait(timeout=90) == 130
        finally:
            demo.kill()
    text = (cwd / "out").read_text()
    assert "Traceback" not in text
    assert text.splitlines()[-1].startswith("Interrupted; stopping everything")
    assert processes_of(home) == {}


def test_simulate_without_a_stack_says_what_to_start(home: Path, cwd: Path) -> None:
    done = kvledger("simulate", "--requests", "5", home=home, folder=cwd, env={"KVLEDGER_LOOKUP_PORT": "9"})
    assert done.returncode == 69
    assert "`kvledger up`" in failure(done)


def test_simulate_fills_a_running_stack_until_it_is_stopped(home: Path, cwd: Path) -> None:
    with running_stack(stack_settings(home), extent=Extent.ALL) as at:
        done = kvledger(
            "simulate", "--workers", "2", "--requests", "40", "--rate", "0", "--json", home=home, folder=cwd
        )
        assert done.returncode == 0, done.stderr
        counts = json.loads(done.stdout.splitlines()[-1])
        assert (counts["requests"], counts["wrong_unflagged"]) == (40, 0)
        # The service reads on its own what the command has written.
        wait_until(lambda: workers(at.lookup_url) == {"sim-0": "closed", "sim-1": "closed"})
        with (
            (cwd / "out").open("wb") as out,
            subprocess.Popen(
                [*KVLEDGER, "simulate", "--workers", "2", "--requests", "10", "--stay"],
                env=environment(home, PYTHONUNBUFFERED="1"),
                cwd=cwd,
                stdout=out,
                stderr=out,
            ) as staying,
        ):
            try:
                wait_until(lambda: b"the workers stay until" in (cwd / "out").read_bytes())
                wait_until(lambda: workers(at.lookup_url) == {"sim-0": "live", "sim-1": "live"})
                second = kvledger("simulate", "--requests", "1", home=home, folder=cwd)
                assert second.returncode == 69
                assert "another simulation runs" in failure(second)
                staying.send_signal(signal.SIGINT)
                assert staying.wait(timeout=60) == 130
            finally:
                staying.kill()
        assert "Traceback" not in (cwd / "out").read_text()
        wait_until(lambda: workers(at.lookup_url) == {"sim-0": "closed", "sim-1": "closed"})
        check_limits(home, cwd)


def workers(url: str) -> dict[str, str]:
    """Status by worker, as the lookup service sees it."""
    with urllib.request.urlopen(f"{url}/v1/workers", timeout=10) as reply:
        return {row["worker"]: row["status"] for row in json.load(reply)["workers"]}


def check_limits(home: Path, cwd: Path) -> None:
    made = kvledger(
        *("limit", "set", "--tenant", "acme", "--soft", "8", "--hard", "10", "--json"), home=home, folder=cwd
    )
    assert made.returncode == 0, made.stderr
    wrong = kvledger("limit", "set", "--tenant", "acme", "--soft", "9", "--hard", "1", home=home, folder=cwd)
    assert wrong.returncode == ExitCode.USAGE
    assert "above the hard one" in failure(wrong)
    unknown = kvledger("limit", "set", "--tenant", "acme", "--tier", "tape", home=home, folder=cwd)
    assert unknown.returncode == ExitCode.USAGE
    failure(unknown)
    listed = kvledger("limit", "list", "--json", home=home, folder=cwd)
    assert json.loads(listed.stdout) == [
        {"tenant": "acme", "tier": "gpu", "unit": "blocks", "soft": 8, "hard": 10}
    ]
