"""An audit that takes several rounds rests on what the log holds at its end, not on what it once held."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from auditor.live import LiveAudit, UnknownRequestError
from events.ids import Role, VerdictKind
from events.kafka.connection import LogUnavailableError, RawRecord
from events.model.control import DomainCreated
from events.signing import verify
from tests.support.deletion_case import Fleet
from tests.support.read_log import KEYS, Log


class Case:
    """A deletion that all but needs its nonce; what `asked` does happens as that is written."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.fleet.a.obey(self.fleet.request)
        self.fleet.b.obey(self.fleet.request)
        self.log = Log(self.fleet.log)
        self.now_s = 0.0
        self.audit = LiveAudit(
            self.log,  # type: ignore[arg-type]
            KEYS,
            verify,
            monotonic_s=self.clock,
            poll_s=0.0,
        )

    def clock(self) -> float:
        self.now_s += 1.0
        return self.now_s

    async def nonce(self, due: Sequence[int]) -> int:
        """Written, and answered by both."""
        assert due == [self.fleet.request]
        return self.fleet.close()


@pytest.fixture
async def case() -> Case:
    made = Case()
    await made.audit.open()
    return made


async def test_several_rounds_of_a_log_that_stands_end_in_a_proof(case: Case) -> None:
    (verdict,) = await case.audit.run([case.fleet.request], 30.0, case.nonce)
    assert verdict.kind is VerdictKind.PROVEN
    assert case.log.rounds == 2


@pytest.mark.parametrize(("records", "size"), [(1, 1 << 20), (3, 1 << 20), (64, 1 << 20), (64, 1_500)])
async def test_how_much_is_folded_at_once_changes_nothing(
    case: Case, monkeypatch: pytest.MonkeyPatch, records: int, size: int
) -> None:
    monkeypatch.setattr("auditor.live.RECORDS_AT_ONCE", records)
    monkeypatch.setattr("auditor.live.BYTES_AT_ONCE", size)
    number = case.fleet.request
    await case.audit.run([number], 0.0, None)
    one_by_one = case.fleet.log.evidence(number).state()
    found = case.audit.evidence[number].state()
    assert found | {"partition_starts": {}} == one_by_one | {"partition_starts": {}}
    assert case.audit.last.keys() == case.fleet.log.events.keys()


async def test_an_ack_that_was_cut_between_two_rounds_proves_nothing(case: Case) -> None:
    records = case.fleet.log.events[case.fleet.b.partition]

    async def cut_as_well(due: Sequence[int]) -> int:
        if case.log.rounds == 1:
            # The last record is gone, and another stands where it stood.
            del records[-1]
            records.append(records[0])
        return await case.nonce(due)

    (verdict,) = await case.audit.run([case.fleet.request], 3.0, cut_as_well)
    assert verdict.kind is not VerdictKind.PROVEN
    assert len(case.audit.control) == len(case.fleet.log.control.records)


async def test_a_nonce_that_was_cut_is_written_again(case: Case) -> None:
    written: list[int] = []
    number = case.fleet.request

    async def write(due: Sequence[int]) -> int:
        if written:
            written.append(await case.nonce(due))
        else:
            control = case.fleet.log.control.records
            written.append(case.fleet.log.nonce(number))
            taken = case.log.control.taken[0]
            await case.log.read_control(lambda _: None)
            assert len(taken) == len(control)
            control.pop()
            case.fleet.log.say(DomainCreated(domain="other", tenant="other"), Role.CONTROL)
        return written[-1]

    (verdict,) = await case.audit.run([number], 30.0, write)
    assert len(written) == 2
    assert verdict.closing_nonce == written[-1]
    assert verdict.kind is VerdictKind.PROVEN


async def test_a_request_that_was_cut_is_unknown(case: Case) -> None:
    async def cut(due: Sequence[int]) -> None:
        del case.fleet.log.control.records[due[0] :]

    with pytest.raises(UnknownRequestError):
        await case.audit.run([case.fleet.request], 30.0, cut)


async def test_a_log_that_never_stands_is_no_verdict(case: Case) -> None:
    async def never() -> bool:
        return False

    case.log.stands = never  # type: ignore[method-assign]
    with pytest.raises(LogUnavailableError, match="again and again"):
        await case.audit.run([case.fleet.request], 3.0, case.nonce)


async def test_a_bundle_is_not_made_of_a_log_that_was_cut_since(case: Case) -> None:
    number = case.fleet.request
    await case.audit.run([number], 30.0, case.nonce)
    found: list[RawRecord] = []
    await case.audit.reread(number, lambda record, _: found.append(record))
    assert len(found) == sum(map(len, case.fleet.log.events.values()))
    records = case.fleet.log.control.records
    records[-1] = records[0]
    with pytest.raises(LogUnavailableError, match="audit again"):
        await case.audit.reread(number, lambda *_: None)
