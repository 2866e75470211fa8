"""A run on record is judged again as it was, and a violation is told with its records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvledger.simulate.checker import Checker
from kvledger.simulate.history import History, HistoryError, RecordedRun
from kvledger.simulate.lookup import Credit, Exclusion, Outcome
from kvledger.simulate.recheck import main, recheck
from tests.support.stream_model import BOUND_MS, CHAIN, TRANSIT_MS, Rule, StreamModel
from tests.unit.kvledger.simulate.test_checker import Clock, asked, truth

__all__ = ["truth"]
MS = 1_000_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
@pytest.mark.parametrize(
    "rule", [Rule.RIGHT, Rule.ECHO_FROM_TIMER, Rule.BLANKET_REFUSAL, Rule.BLANKET_SILENCE]
)
def test_recorded_run_is_judged_as_it_was(tmp_path: Path, name: str, rule: Rule) -> None:
    model = StreamModel(rule, 1)
    history = History(tmp_path / name)
    checker = Checker(model.truth, floor_ms=400, transit_ms=TRANSIT_MS, settle_ms=1500, history=history)
    for lookup in model.lookups(80, positions=True):
        checker.check(lookup)
    history.close()
    again = recheck(tmp_path / name)
    assert again.different == ()
    assert again.checker.counts == checker.counts
    assert again.checker.explanations == checker.explanations
    assert again.checker.allowance == checker.allowance
    assert len(history.newest) == 80


def test_changes_between_lookups_are_on_record(tmp_path: Path) -> None:
    clock = Clock()
    from kvledger.simulate.truth import Truth

    living = Truth(clock)
    living.enlist("w")
    log = living.log_of("w")
    log.begin_life("w-1")
    path = tmp_path / "run.jsonl"
    history = History(path)
    checker = Checker(living, history=history)
    for at_ms in range(100, 3000, 100):
        clock.ms = at_ms
        cpu = living.log_of("w", tier="cpu")
        log.store([1, 2, 3])
        log.doubt(2)
        cpu.store([at_ms])
        if at_ms % 300 == 0:
            log.drop(2)
        if at_ms % 700 == 0:
            log.clear()
        log.publish("w-1", at_ms, at_ms * MS)
        living.vouch("w", 0, at_ms * MS - 5)
        if at_ms == 1000:
            living.disturb("w", excused_s=0.5, kind="test")
            living.was_slow(900 * MS, 950 * MS)
            living.hide("t")
        if at_ms == 1500:
            living.calm("w")
            living.unhide("t")
            living.split("w").store([7])
            log.begin_life("w-2")
        if at_ms == 2000:
            living.drain("w")
            living.retire("w")
            living.enlist("w", basis="published")
        clock.ms = at_ms + 50
        length = log.length_at((1, 2, 3), round(clock.ms * MS))
        checker.check(asked(clock.ms, Credit("w", 0, length, 10, basis="published")))
        checker.check(asked(clock.ms, Credit("w", 0, 3, 10), exclusions=(Exclusion("w", 1, "gap"),)))
        checker.check(asked(clock.ms + 3, Credit("w", 0, 3, 10), status=503))
    history.close()
    run = RecordedRun(path)
    seen = [lookup for lookup, _ in run.lookups()]
    assert len(seen) == checker.counts.lookups == 87
    assert run.truth.dump() == json.loads(json.dumps(living.dump())) or _same(run, living.dump())
    again = recheck(path)
    assert again.different == ()
    assert again.checker.counts == checker.counts


def _same(run: RecordedRun, dumped: dict[str, object]) -> bool:
    plain = json.loads(json.dumps(run.truth.dump()))
    return bool(plain == json.loads(json.dumps(dumped)))


def test_only_the_newest_lookups_are_kept_in_memory(truth: object) -> None:
    history = History(kept=3)
    checker = Checker(truth, history=history)  # type: ignore[arg-type]
    for at_ms in range(1100, 1200, 10):
        checker.check(asked(at_ms, Credit("w", 0, 1, 10)))
    assert [lookup.start_ns // MS for lookup, _ in history.newest] == [1170, 1180, 1190]
    assert history.lines == 0


def test_damaged_history_is_named_with_its_line(tmp_path: Path, truth: object) -> None:
    path = tmp_path / "run.jsonl"
    history = History(path)
    checker = Checker(truth, history=history)  # type: ignore[arg-type]
    checker.check(asked(1100, Credit("w", 0, 1, 10)))
    history.close()
    whole = path.read_text()
    for text, line in (
        ("", 1),
        ('{"version":9}\n', 1),
        (whole[:-30], 2),
        (whole + '["explode",[],[]]\n', 3),
        (whole + '{"lookup":{}}\n', 3),
        (whole + "[]\n", 3),
    ):
        path.write_text(text)
        with pytest.raises(HistoryError) as raised:
            recheck(path)
        assert raised.value.line == line


def test_history_is_judged_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl.gz"
    for rule, code in ((Rule.RIGHT, 0), (Rule.BLANKET_REFUSAL, 1), (Rule.BLANKET_SILENCE, 1)):
        model = StreamModel(rule, 1)
        history = History(path)
        checker = Checker(model.truth, floor_ms=400, transit_ms=TRANSIT_MS, settle_ms=1500, history=history)
        for lookup in model.lookups(60, positions=True):
            checker.check(lookup)
        history.close()
        assert main([str(path)]) == code
        assert capsys.readouterr().out.startswith("60 lookups")
        assert main(["--json", str(path)]) == code
        document = json.loads(capsys.readouterr().out)
        assert document["outcomes"] == {k.value: n for k, n in checker.counts.outcomes.items()}
        assert len(document["explanations"]) == (5 if code else 0)
    assert main([]) == main([str(tmp_path / "none")]) == 2
    assert "usage" in capsys.readouterr().err


def test_violation_is_explained_with_its_records(truth: object, clock: Clock) -> None:
    checker = Checker(truth)  # type: ignore[arg-type]
    clock.ms = 1050
    truth.disturb("w", kind="restart")  # type: ignore[attr-defined]
    truth.vouch("w", 0, 1040 * MS)  # type: ignore[attr-defined]
    checker.check(asked(1100, Credit("w", 0, 2, 50, epoch="e", next_seq=7, first_missing_ns=1000 * MS)))
    (told,) = checker.explanations
    assert told.outcome == Outcome.WRONG_UNFLAGGED.value
    assert told.window_ms == (-50.0, 2.0)
    assert told.right == (1,)
    assert told.true_until_ms == pytest.approx(-100, abs=0.01)
    assert [(c.at_ms, c.block, c.stored) for c in told.changes] == [
        (-1000, 0, True),
        (-900, 1, True),
        (-100, 1, False),
    ]
    assert told.pulses == ((-50.0, -60.0),)
    assert told.disturbances[0]["kind"] == "restart"
    assert (told.answer["epoch"], told.answer["next_seq"], told.answer["first_missing_ms"]) == ("e", 7, -100)
    assert json.loads(json.dumps(told.document()))["why"] == told.why
    text = "\n".join(told.lines())
    assert "block 1 dropped on gpu" in text
    assert "last true at -100.0 ms" in text
    assert text.startswith("wrong_unflagged: w/0: a mutation 50.0 ms older")


def test_refusal_and_absence_are_explained_too(truth: object) -> None:
    checker = Checker(truth)  # type: ignore[arg-type]
    checker.check(asked(20_000, status=503))
    checker.check(asked(20_100, complete=True, staleness_ms=10))
    refused, absent = checker.explanations
    assert refused.window_ms is None
    assert "in bound" in refused.lines()[0]
    assert absent.right == (1,)
    assert absent.answer["complete"] is True
    assert len(CHAIN) == 8
    assert BOUND_MS > 0
