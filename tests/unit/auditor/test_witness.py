"""A witness over real HTTP: it cosigns what extends its newest tree and nothing else, whenever it is killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from auditor.checkpoint import NoteKey, TreeHead, cosigned_at, parse_note, parse_signatures, sign
from auditor.tree import consistency_proof
from auditor.witness import MAX_REQUEST_BYTES, AddCheckpoint, RefusedError, parse_request
from auditor.witness_client import WitnessAddress, WitnessError, ask_witness
from auditor.witness_server import MAX_CONNECTIONS, WitnessMemory, WitnessStateError
from events.signing import Signer
from tests.support.witness import (
    LOG,
    LOG_KEY,
    NOW_S,
    WITNESS_KEY,
    checkpoint,
    leaves,
    prove,
    serving,
    witness,
)

STRANGER = Signer.from_seed(bytes(32))


def post(
    at: WitnessAddress, body: bytes, path: str = "/add-checkpoint", **headers: str
) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(urlsplit(at.url).netloc, timeout=10)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers.get_content_type(), answer.read().decode()
    finally:
        connection.close()


def request(old: int, size: int, history: str = "", **more: object) -> bytes:
    proof = tuple(consistency_proof(leaves(size, history), old)) if old <= size else ()
    return AddCheckpoint(old, proof, checkpoint(size, history, **more)).to_bytes()  # type: ignore[arg-type]


def test_a_checkpoint_that_extends_the_newest_one_is_cosigned(tmp_path: Path) -> None:
    with serving(tmp_path) as at:
        for old, size in ((0, 3), (3, 7), (7, 7), (7, 40)):
            status, _, text = post(at, request(old, size))
            assert status == 200, text
            note = checkpoint(size).with_signatures(parse_signatures(text))
            assert note.signed_by(WITNESS_KEY)
            assert cosigned_at(note.signatures[-1]) == NOW_S


def test_a_stale_old_size_is_answered_with_the_newest_one(tmp_path: Path) -> None:
    with serving(tmp_path) as at:
        assert post(at, request(3, 7)) == (409, "text/x.tlog.size", "0\n")
        assert post(at, request(0, 7))[0] == 200
        for old, size in ((0, 9), (3, 9), (3, 5)):
            assert post(at, request(old, size)) == (409, "text/x.tlog.size", "7\n")


def test_a_split_view_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as at:
        assert post(at, request(0, 7))[0] == 200
        status, kind, _ = post(at, request(7, 7, "other"))
        assert (status, kind) == (409, "text/plain")
        assert post(at, request(7, 12, "other"))[0] == 422
        assert post(at, request(7, 12))[0] == 200


def test_who_signs_and_for_which_log_decides(tmp_path: Path) -> None:
    foreign = NoteKey("kvledger.audit/other", LOG.public_key)
    with serving(tmp_path) as at:
        assert post(at, request(0, 3, signer=STRANGER))[0] == 403
        assert post(at, request(0, 3, key=foreign))[0] == 404
        renamed = checkpoint(3, key=foreign)
        moved = TreeHead(LOG_KEY.name, 3, bytes(32)).text()
        assert renamed.text != moved
        body = AddCheckpoint(0, (), type(renamed)(moved, renamed.signatures)).to_bytes()
        assert post(at, body)[0] == 403


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n\n",
        b"old 0\n",
        b"old 01\n\n" + checkpoint(3).to_bytes(),
        b"old -1\n\n" + checkpoint(3).to_bytes(),
        b"old 99999999999999999999\n\n" + checkpoint(3).to_bytes(),
        b"old 0\n!!\n\n" + checkpoint(3).to_bytes(),
        b"old 0\nAAAA\n\n" + checkpoint(3).to_bytes(),
        b"old 0\n" + b"A" * 43 + b"=\n" * 64 + b"\n" + checkpoint(3).to_bytes(),
        b"old 0\n\n" + checkpoint(3).text.encode(),
        b"old 4\n\n" + checkpoint(3).to_bytes(),
        b"\xff\xfe\n\n" + checkpoint(3).to_bytes(),
        AddCheckpoint(0, (), type(checkpoint(3))("no\ncheckpoint\n", checkpoint(3).signatures)).to_bytes(),
    ],
)
def test_a_body_that_cannot_be_read_is_a_bad_request(tmp_path: Path, body: bytes) -> None:
    with serving(tmp_path) as at:
        assert post(at, body)[0] == 400
        assert post(at, request(0, 3))[0] == 200


def test_a_proof_from_nothing_must_be_empty_and_an_empty_tree_has_one_root(tmp_path: Path) -> None:
    with serving(tmp_path) as at:
        body = AddCheckpoint(0, (bytes(32),), checkpoint(3)).to_bytes()
        assert post(at, body)[0] == 422
        text = TreeHead(LOG_KEY.name, 0, bytes(32)).text()
        body = AddCheckpoint(0, (), type(checkpoint(3))(text, (sign(text, LOG_KEY, LOG),))).to_bytes()
        assert post(at, body)[0] == 422
        assert post(at, request(0, 0))[0] == 200


def test_requests_that_are_none_do_not_stop_it(tmp_path: Path) -> None:
    with serving(tmp_path) as at:
        assert post(at, b"x", path="/other")[0] == 404
        assert post(at, b"x", **{"Content-Length": str(MAX_REQUEST_BYTES + 1)})[0] == 413
        assert post(at, b"x", **{"Content-Length": "many"})[0] == 411
        host, _, port = urlsplit(at.url).netloc.partition(":")
        for noise in (b"\x00\xff\r\n\r\n", b"POST /add-checkpoint HTTP/1.1\r\nContent-Length: 99\r\n\r\nold"):
            with socket.create_connection((host, int(port)), timeout=10) as raw:
                raw.sendall(noise)
        assert post(at, request(0, 3))[0] == 200


def test_requests_at_the_same_time_leave_one_history(tmp_path: Path) -> None:
    answers: list[tuple[int, str]] = []
    with serving(tmp_path) as at:

        def ask(size: int, history: str) -> None:
            answers.append((post(at, request(0, size, history))[0], history))

        threads = [threading.Thread(target=ask, args=(n + 3, h)) for n in range(6) for h in ("", "other")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(status for status, _ in answers) == [200] + [409] * 11


def test_it_remembers_over_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as at:
        assert post(at, request(0, 7))[0] == 200
    with serving(tmp_path) as at:
        assert post(at, request(0, 9)) == (409, "text/x.tlog.size", "7\n")
        assert post(at, request(7, 9, "other"))[0] == 422


def test_killed_between_disk_and_answer_it_has_cosigned_one_history(tmp_path: Path) -> None:
    dying = subprocess.Popen(
        [sys.executable, "-m", "tests.support.witness", str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert dying.stdout is not None
    at = WitnessAddress(f"http://127.0.0.1:{int(dying.stdout.readline())}", WITNESS_KEY)
    with pytest.raises(WitnessError, match="doesn't answer"):
        ask_witness(at, checkpoint(7), 0, prove(7), 10)
    assert dying.wait(timeout=30) == -9
    dying.stdout.close()
    with serving(tmp_path) as again:
        assert post(again, request(0, 7, "other")) == (409, "text/x.tlog.size", "7\n")
        assert post(again, request(7, 7, "other"))[0] == 409
        (given,) = ask_witness(again, checkpoint(7), 0, prove(7), 10)
        assert checkpoint(7).with_signatures([given]).signed_by(WITNESS_KEY)
        assert ask_witness(again, checkpoint(9), 7, prove(9), 10)


def test_what_it_remembered_and_cannot_read_stops_it(tmp_path: Path) -> None:
    with serving(tmp_path) as at:
        assert post(at, request(0, 7))[0] == 200
    (path,) = tmp_path.glob("*.head")
    for garbage in ("", "{}", json.dumps({"text": "garbage"}), path.read_text()[:-9]):
        path.write_text(garbage)
        with pytest.raises(WitnessStateError, match="can't be read"):
            WitnessMemory(tmp_path).open()


def test_two_processes_cannot_be_one_witness(tmp_path: Path) -> None:
    first = WitnessMemory(tmp_path)
    first.open()
    with pytest.raises(WitnessStateError, match="another witness"):
        WitnessMemory(tmp_path).open()
    first.close()
    second = WitnessMemory(tmp_path)
    second.open()
    second.close()


def test_what_cannot_be_remembered_is_not_cosigned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, memory = witness(tmp_path)

    def full(_: TreeHead) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory, "remember", full)
    with pytest.raises(RefusedError) as refused:
        made.add(request(0, 3))
    assert refused.value.status == 500
    memory.close()


def test_the_client_catches_up_and_tells_a_split_history(tmp_path: Path) -> None:
    with serving(tmp_path) as at:
        assert ask_witness(at, checkpoint(5), 0, prove(5), 10)
        assert ask_witness(at, checkpoint(8), 0, prove(8), 10)
        with pytest.raises(WitnessError, match="lost records"):
            ask_witness(at, checkpoint(6), 0, prove(6), 10)
        with pytest.raises(WitnessError, match="split"):
            ask_witness(at, checkpoint(8, "other"), 8, prove(8, "other"), 10)
        with pytest.raises(WitnessError, match="doesn't extend"):
            ask_witness(at, checkpoint(9, "other"), 8, prove(9, "other"), 10)
        other = WitnessAddress(at.url, NoteKey("w.example", STRANGER.public_key, WITNESS_KEY.kind))
        with pytest.raises(WitnessError, match="doesn't hold"):
            ask_witness(other, checkpoint(9), 8, prove(9), 10)
        with pytest.raises(WitnessError, match="403"):
            ask_witness(at, checkpoint(9, signer=STRANGER), 9, prove(9), 10)
        with pytest.raises(WitnessError, match="never had"):
            ask_witness(at, checkpoint(9), 11, prove(9), 10)
    with pytest.raises(WitnessError, match="doesn't answer"):
        ask_witness(at, checkpoint(9), 8, prove(9), 10)


def test_the_specifications_example_request_is_read() -> None:
    body = (
        "old 20852014\n"
        "PlRNCrwHpqhGrupue0L7gxbjbMiKA9temvuZZDDpkaw=\n"
        "jrJZDmY8Y7SyJE0MWLpLozkIVMSMZcD5kvuKxPC3swk=\n"
        "5+pKlUdi2LeF/BcMHBn+Ku6yhPGNCswZZD1X/6QgPd8=\n"
        "/6WVhPs2CwSsb5rYBH5cjHV/wSmA79abXAwhXw3Kj/0=\n"
        "\n"
        "example.com/behind-the-sofa\n"
        "20852163\n"
        "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
        "\n"
        "\N{EM DASH} example.com/behind-the-sofa "
        "Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
    ).encode()
    read = parse_request(body)
    assert (read.old, len(read.proof)) == (20852014, 4)
    assert parse_note(read.note.to_bytes()) == read.note
    assert read.to_bytes() == body


def test_a_server_that_is_full_closes_and_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path) as at:
        where = ("127.0.0.1", urlsplit(at.url).port)
        idle = [socket.create_connection(where, timeout=10) for _ in range(MAX_CONNECTIONS)]
        with pytest.raises(WitnessError, match="doesn't answer"):
            ask_witness(at, checkpoint(3), 0, prove(3), 10)
        for one in idle:
            one.close()
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            with contextlib.suppress(WitnessError):
                assert ask_witness(at, checkpoint(3), 0, prove(3), 10)
                return
        pytest.fail("it takes no connection any more")


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n"])
def test_a_witness_that_answers_byte_by_byte_is_left(beginning: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(beginning)
            while not stop.wait(0.05):
                connection.sendall(b"x")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    address = WitnessAddress(f"http://127.0.0.1:{listener.getsockname()[1]}", WITNESS_KEY)
    began = time.monotonic()
    with pytest.raises(WitnessError):
        ask_witness(address, checkpoint(3), 0, prove(3), 0.5)
    assert time.monotonic() - began < 5
    stop.set()
    thread.join(5)
    listener.close()


def test_a_length_of_thousands_of_digits_is_too_long(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path) as address:
        host, port = address.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(
                b"POST /add-checkpoint HTTP/1.1\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n"
            )
            assert connection.recv(1_000).startswith(b"HTTP/1.1 413")
    assert "Traceback" not in capfd.readouterr().err
