"""An RFC 3161 stamp of a checkpoint: from a real authority over HTTP, checked, and never taken for more than it is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import typer

from auditor.anchoring import Anchor, Anchoring
from auditor.proof import StampStated
from auditor.timestamp import Authority, StampError, ask, check_stamp, read_stamp
from auditor.timestamp_order import in_order
from auditor.verify import verify_bundle
from events.chain import sha256
from kvledger.command.audit_verify import verify
from kvledger.failure import CommandError, ExitCode
from tests.support.bundle import OPERATOR, bundle, second_says
from tests.support.deletion_case import Fleet
from tests.support.offline import without_network
from tests.support.sealed_log import sealed
from tests.support.timestamp_authority import TimestampAuthority

TEXT = "kvledger.audit/log\n7\nAAAA\n"
KEY = OPERATOR.public_key.hex()


@pytest.fixture(scope="module")
def tsa() -> Iterator[TimestampAuthority]:
    with TimestampAuthority() as authority:
        yield authority


@pytest.fixture(scope="module")
def trusted(tsa: TimestampAuthority) -> Authority:
    return Authority.from_pem(tsa.root)


@pytest.fixture(scope="module")
def stamp(tsa: TimestampAuthority, trusted: Authority) -> bytes:
    return ask(tsa.url, TEXT, trusted, 5.0)


def test_a_stamp_says_who_gave_it_and_when(stamp: bytes, trusted: Authority) -> None:
    said = StampStated(
        authority="CN=Test TSA", time="2026-11-30T09:00:00+00:00", policy="1.3.6.1.4.1.32473.1"
    )
    assert read_stamp(stamp, TEXT) == check_stamp(stamp, TEXT, trusted) == said


def test_a_stamp_of_something_else_by_somebody_else_or_spoilt_is_named(
    stamp: bytes, trusted: Authority
) -> None:
    with pytest.raises(StampError, match="another checkpoint"):
        read_stamp(stamp, TEXT + "x")
    with pytest.raises(StampError, match="not signed by this authority"):
        check_stamp(stamp, TEXT, Authority.from_pem(TimestampAuthority("Another").root))
    for garbage in (b"", b"\x30", stamp[:-1], stamp[:200], b"\x00" * 900):
        with pytest.raises(StampError):
            check_stamp(garbage, TEXT, trusted)
    for pem in (b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(StampError):
            Authority.from_pem(pem)


def test_no_flipped_byte_tells_another_time_or_text(stamp: bytes, trusted: Authority) -> None:
    honest, rng = check_stamp(stamp, TEXT, trusted), random.Random(3)
    for _ in range(100):
        edited = bytearray(stamp)
        edited[rng.randrange(len(edited))] ^= 1 << rng.randrange(8)
        try:
            assert check_stamp(bytes(edited), TEXT, trusted) == honest
        except StampError:
            continue


def test_an_authority_that_refuses_lies_or_is_away_gives_none(
    tsa: TimestampAuthority, trusted: Authority
) -> None:
    with pytest.raises(StampError, match="not signed by this authority"):
        ask(tsa.url, TEXT, Authority.from_pem(TimestampAuthority("Another").root), 5.0)
    tsa.refuse = True
    with pytest.raises(StampError, match="refused: status 2"):
        ask(tsa.url, TEXT, trusted, 5.0)
    tsa.refuse, tsa.imprint = False, sha256(b"other")
    with pytest.raises(StampError, match="another checkpoint"):
        ask(tsa.url, TEXT, trusted, 5.0)
    tsa.imprint = b""
    with pytest.raises(StampError, match="doesn't answer"):
        ask("http://127.0.0.1:1/tsa", TEXT, trusted, 5.0)


@pytest.mark.parametrize("chain", ["before", "behind"])
def test_certificates_are_taken_in_any_order(
    tsa: TimestampAuthority, trusted: Authority, chain: Literal["before", "behind"]
) -> None:
    tsa.chain = chain
    raw = ask(tsa.url, TEXT, trusted, 5.0)
    assert check_stamp(raw, TEXT, trusted).authority == "CN=Test TSA"
    assert in_order(in_order(raw)) == in_order(raw)
    with pytest.raises(StampError, match="not signed by this authority"):
        check_stamp(raw, TEXT, Authority.from_pem(TimestampAuthority("Another").root))
    # Whatever is cut or changed in it is refused by name, never a crash.
    for at in range(0, len(raw), 37):
        for bad in (raw[:at], raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :]):
            try:
                check_stamp(bad, TEXT, trusted)
            except StampError:
                continue
            assert len(bad) == len(raw)


class Stamped:
    """A proven deletion whose checkpoint is stamped; `anchor` is without the stamp."""

    def __init__(self, tsa: TimestampAuthority, folder: Path) -> None:
        fleet = Fleet()
        fleet.finish()
        self.fleet, self.folder = fleet, folder
        self.anchor = sealed(fleet.log)
        raw = ask(tsa.url, self.anchor.note.text, Authority.from_pem(tsa.root), 5.0)
        self.said = read_stamp(raw, self.anchor.note.text)
        self.stamped = replace(self.anchor, stamp=raw)
        self.pem = folder / "tsa.pem"
        self.pem.write_bytes(tsa.root)

    def bundle(self, anchor: Anchor, said: StampStated | None) -> bytes:
        anchoring = Anchoring(checkpoint=True)
        return bundle(self.fleet.log, self.fleet.request, anchor=anchor, anchoring=anchoring, stamp=said)

    def verify(self, raw: bytes, tsa: Path | None = None) -> tuple[int, str]:
        """Exit code and failure of `audit verify`, in this process."""
        path = self.folder / "proof.jsonl"
        path.write_bytes(raw)
        try:
            verify(path, key=KEY, witness=None, quorum=None, tsa=tsa, as_json=False)
        except CommandError as error:
            return int(error.exit_code), error.message
        except typer.Exit as end:
            return end.exit_code, ""
        return 0, ""


@pytest.fixture
def case(tsa: TimestampAuthority, tmp_path: Path) -> Stamped:
    return Stamped(tsa, tmp_path)


def test_a_stamped_bundle_is_checked_without_a_network(case: Stamped) -> None:
    raw = case.bundle(case.stamped, case.said)
    assert verify_bundle(raw, OPERATOR.public_key).stamp == case.said
    assert second_says(raw, OPERATOR.public_key) == "PROVEN"
    path = case.folder / "proof.jsonl"
    path.write_bytes(raw)
    done = without_network(
        "audit", "verify", str(path), "--key", KEY, "--tsa", str(case.pem), home=case.folder
    )
    assert (done.code, done.error) == (0, "")
    assert "time-stamped by CN=Test TSA at 2026-11-30T09:00:00+00:00" in done.out


def test_a_stamp_that_nobody_asked_to_check_is_hearsay(
    case: Stamped, capsys: pytest.CaptureFixture[str]
) -> None:
    assert case.verify(case.bundle(case.stamped, case.said)) == (0, "")
    assert "says that CN=Test TSA time-stamped it" in capsys.readouterr().out


def test_a_stamp_that_is_wanted_and_missing_or_bad_leaves_nothing_proven(
    case: Stamped, capsys: pytest.CaptureFixture[str]
) -> None:
    code, why = case.verify(case.bundle(case.anchor, None), case.pem)
    assert (code, "time_stamp_missing" in why) == (2, True)
    other = case.folder / "other.pem"
    other.write_bytes(TimestampAuthority("Another").root)
    raw = case.bundle(case.stamped, case.said)
    code, why = case.verify(raw, other)
    assert (code, "time_stamp_invalid" in why) == (2, True)
    assert case.verify(raw, case.folder)[0] == ExitCode.USAGE
    capsys.readouterr()
    spoilt = case.bundle(replace(case.stamped, stamp=case.stamped.stamp[:-9]), case.said)
    assert case.verify(spoilt)[0] == 0
    assert "its time stamp is bad" in capsys.readouterr().out
    code, why = case.verify(spoilt, case.pem)
    assert (code, "time_stamp_invalid" in why) == (2, True)


def test_a_missing_stamp_is_named_whatever_the_verdict(
    case: Stamped, capsys: pytest.CaptureFixture[str]
) -> None:
    open_ = Fleet()
    raw = bundle(open_.log, open_.request, anchor=sealed(open_.log), anchoring=Anchoring(checkpoint=True))
    assert case.verify(raw, case.pem)[0] == ExitCode.PENDING
    assert "time_stamp_missing: the file carries no time stamp" in capsys.readouterr().out
    assert case.verify(raw)[0] == ExitCode.PENDING
    assert "time_stamp" not in capsys.readouterr().out


def test_a_statement_that_lies_about_its_stamp_proves_nothing(case: Stamped) -> None:
    sooner = case.said.model_copy(update={"time": "2020-01-01T00:00:00+00:00"})
    for anchor, said in ((case.stamped, sooner), (case.anchor, case.said), (case.stamped, None)):
        assert case.verify(case.bundle(anchor, said))[0] == 4
