"""`kvledger audit render` and `audit verify` as a reader runs them: from the file alone, without a network."""

from __future__ import annotations

import json
import re
import socket
import tomllib
import zipfile
from pathlib import Path

import pytest

from events.chain import sha256
from events.ids import Role
from events.model.control import ExitAttested, HoldSet
from kvledger.failure import ExitCode
from tests.support.bundle import OPERATOR
from tests.support.command import failure, kvledger
from tests.support.deletion_case import Fleet
from tests.support.offline import isolation, reaches, without_network
from tests.support.page import read_page
from tests.support.paper_case import MAKERS, made

EXIT = {"PROVEN": 0, "REFUTED": 1, "UNPROVABLE": 2, "PENDING": 3}
KEY = OPERATOR.public_key.hex()


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    path = tmp_path / "proof.jsonl"
    path.write_bytes(made(MAKERS["PROVEN"]())[0])
    return path


def test_a_proof_becomes_papers_and_tables(proof: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    kinds = (
        "--html",
        out / "p.html",
        "--pdf",
        out / "p.pdf",
        "--csv",
        out / "csv",
        "--parquet",
        out / "parquet",
    )
    done = kvledger("audit", "render", str(proof), "--key", KEY, *map(str, kinds), home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    page = read_page((out / "p.html").read_bytes())
    assert sha256(proof.read_bytes()).hex() in page.text
    assert (out / "p.pdf").read_bytes().startswith(b"%PDF-")
    names = {path.stem for path in (out / "csv").iterdir()}
    assert (
        names
        == {path.stem for path in (out / "parquet").iterdir()}
        >= {"about", "control", "facts", "holders"}
    )
    assert not [path for path in out.rglob(".*")]


def test_one_file_holds_the_proof_and_all_that_is_rendered_from_it(proof: Path, tmp_path: Path) -> None:
    packed, again = tmp_path / "proof.zip", tmp_path / "again.zip"
    for path in (packed, again):
        done = kvledger("audit", "render", str(proof), "--key", KEY, "--pack", str(path), home=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    assert packed.read_bytes() == again.read_bytes()
    out = tmp_path / "out"
    with zipfile.ZipFile(packed) as pack:
        pack.extractall(out)
    assert (out / "proof.jsonl").read_bytes() == proof.read_bytes()
    assert sha256(proof.read_bytes()).hex() in (out / "READ-ME.txt").read_text()
    done = kvledger("audit", "verify", str(out / "proof.jsonl"), "--key", KEY, home=tmp_path)
    assert done.returncode == 0
    single = ("--html", str(tmp_path / "p.html"), "--pdf", str(tmp_path / "p.pdf"))
    tables = ("--csv", str(tmp_path / "t"), "--parquet", str(tmp_path / "t"))
    assert (
        kvledger("audit", "render", str(proof), "--key", KEY, *single, *tables, home=tmp_path).returncode == 0
    )
    assert (out / "proof.html").read_bytes() == (tmp_path / "p.html").read_bytes()
    assert (out / "proof.pdf").read_bytes() == (tmp_path / "p.pdf").read_bytes()
    made_apart = {path.name: path.read_bytes() for path in (tmp_path / "t").iterdir()}
    assert {path.name: path.read_bytes() for path in (out / "evidence").iterdir()} == made_apart


def test_a_file_that_proves_nothing_becomes_no_paper(proof: Path, tmp_path: Path) -> None:
    edited = tmp_path / "edited.jsonl"
    edited.write_bytes(proof.read_bytes().replace(b"acme", b"acne", 1))
    page = tmp_path / "page.html"
    for path, key, code in (
        (edited, KEY, 4),
        (proof, "00" * 32, 4),
        (tmp_path / "missing", KEY, ExitCode.USAGE),
        (tmp_path, KEY, ExitCode.USAGE),
    ):
        done = kvledger("audit", "render", str(path), "--key", key, "--html", str(page), home=tmp_path)
        assert done.returncode == code
        failure(done)
        assert not page.exists()
    done = kvledger("audit", "render", str(proof), home=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert "--html FILE" in failure(done)
    done = kvledger("audit", "render", str(proof), "--html", "/dev/null/x", home=tmp_path)
    assert done.returncode == 1
    assert "can't be written" in failure(done)


@pytest.mark.parametrize("kind", list(EXIT))
def test_a_bundle_verifies_without_a_network(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "proof.jsonl"
    path.write_bytes(made(MAKERS[kind]())[0])
    done = without_network("audit", "verify", str(path), "--key", KEY, home=tmp_path)
    assert (done.code, done.error, done.refused) == (EXIT[kind], "", ())
    assert kind in done.out.splitlines()[1]


def test_a_verifier_is_told_whose_word_an_exit_is_and_what_holds_a_deletion_up(tmp_path: Path) -> None:
    path = tmp_path / "proof.jsonl"
    gone = Fleet()
    body = ExitAttested(
        worker="w10", engine_life=gone.b.life, attester="operator", evidence="scrapped\x1b[2J, ticket 88"
    )
    gone.log.say(body, Role.SUPERVISOR)
    gone.finish(gone.a)
    path.write_bytes(made(gone)[0])
    done = kvledger("audit", "verify", str(path), "--key", KEY, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        "stated to have ended by an operator: «scrapped\\u{1b}[2J, ticket 88» (register 11, key "
        in done.stdout
    )
    assert "  given 2026-" in done.stdout
    assert "\x1b" not in done.stdout

    held = Fleet()
    held.log.say(HoldSet(hold="case-2031", tenant="acme", reason="litigation"), Role.CONTROL)
    path.write_bytes(made(held)[0])
    done = kvledger("audit", "verify", str(path), "--key", KEY, "--json", home=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["holds"][0]["reason"]) == (3, "litigation")
    done = kvledger("audit", "verify", str(path), "--key", KEY, home=tmp_path)
    assert (
        "  Legal hold case-2031: It stands on every domain of tenant acme. Reason: litigation." in done.stdout
    )
    assert "  holder w0/0/gpu: none, waits: legal hold case-2031 stands" in done.stdout


def test_the_isolation_isolates() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert reaches(server.getsockname()[1]) is (isolation() == ())


def test_the_hook_lets_no_command_reach_out(tmp_path: Path) -> None:
    done = without_network("audit", "show", "1", home=tmp_path)
    assert done.code != 0
    assert done.refused


def test_verifying_needs_the_plain_install_alone(proof: Path, tmp_path: Path) -> None:
    """No extra: so a fresh virtual environment with `kvledger` alone can do it. Neither do HTML and CSV."""
    html, csv = str(tmp_path / "p.html"), str(tmp_path / "csv")
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = {
        re.split(r"[\[<>=;]", one)[0].strip().replace("-", "_").lower()
        for name in project["optional-dependencies"]
        for one in project["optional-dependencies"][name]
    } - {"kvledger"}
    extras |= {"zmq", "faust", "yaml", "PIL"}
    for arguments in (
        ("verify", str(proof), "--key", KEY),
        ("render", str(proof), "--key", KEY, "--html", html, "--csv", csv),
    ):
        done = without_network("audit", *arguments, home=tmp_path)
        assert done.code == 0, done.error
        assert done.modules & extras == set()
