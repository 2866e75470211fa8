"""The verifier in one file agrees with `audit verify`, whatever the log, and whatever is done to a bundle."""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from auditor.proof import seal, unseal
from events.chain import sha256
from events.ids import VerdictKind
from tests.support.audit_story import Story
from tests.support.bundle import AUDITOR, INVALID, OPERATOR, bundle, first_says, second_says
from tests.support.deletion_case import Fleet

FILE = Path("docs/verify_bundle.py")


def test_it_needs_python_and_cryptography_alone() -> None:
    roots: set[str] = set()
    for node in ast.walk(ast.parse(FILE.read_text())):
        if isinstance(node, ast.Import):
            roots |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add((node.module or "").partition(".")[0])
    assert roots - set(sys.stdlib_module_names) == {"cryptography"}


def agreed(made: bytes, key: bytes = OPERATOR.public_key) -> str:
    first, second = first_says(made, key), second_says(made, key)
    assert first == second
    return first


@pytest.mark.parametrize("trouble", [0.0, 0.2, 0.6])
def test_both_agree_on_random_logs(trouble: float) -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        story = Story(seed, trouble)
        made = bundle(story.log, story.request)
        kind = agreed(made)
        assert kind == story.log.verdict(story.request).kind, (seed, trouble)
        seen[kind] += 1
    assert INVALID not in seen
    assert len(seen) >= (2 if trouble < 0.5 else 3), seen


def test_both_agree_on_a_control_log_that_lost_records() -> None:
    fleet = Fleet()
    fleet.finish()
    for lost in (3, 6):
        made = bundle(fleet.log, fleet.request, lost=frozenset({lost}))
        kind = agreed(made)
        assert kind not in (INVALID, VerdictKind.PROVEN)
        verdict = json.loads(unseal(made.split(b"\n")[0])[1])["predicate"]["verdict"]
        assert kind == verdict["kind"]
        assert "topic_compacted" in {one["reason"] for one in verdict["reasons"]}


@pytest.fixture(scope="module")
def proven() -> bytes:
    fleet = Fleet()
    fleet.finish()
    return bundle(fleet.log, fleet.request)


def test_both_agree_on_every_kind_of_edit(proven: bytes) -> None:
    assert agreed(proven) == VerdictKind.PROVEN
    rng = random.Random(3)
    for _ in range(300):
        edited = bytearray(proven)
        place = rng.randrange(len(edited)) if rng.random() < 0.5 else rng.randrange(edited.index(b"\n"))
        how = rng.randrange(3)
        if how == 0:
            edited[place] ^= 1 << rng.randrange(8)
        elif how == 1:
            del edited[place]
        else:
            edited.insert(place, rng.randrange(256))
        assert agreed(bytes(edited)) in (INVALID, VerdictKind.PROVEN)
    for garbage in (
        b"",
        b"\n",
        b"{}",
        b"{}\n{}",
        b"\xff\n\x00",
        b"[" * 100_000 + b"\n[",
        b"null\nnull",
        proven[:900],
    ):
        assert agreed(garbage) == INVALID


def resigned(made: bytes, edit: Callable[[list[bytes]], list[bytes]]) -> bytes:
    """By an auditor who signs whatever he is told to."""
    first, *lines = made.split(b"\n")
    body = b"\n".join(edit(lines))
    statement = json.loads(unseal(first)[1])
    statement["subject"][1]["digest"]["sha256"] = sha256(body).hex()
    return seal(json.dumps(statement).encode(), AUDITOR) + b"\n" + body


def test_both_agree_on_edited_evidence_that_the_auditor_signed(proven: bytes) -> None:
    rng = random.Random(5)

    def edit(lines: list[bytes]) -> list[bytes]:
        made, at = list(lines), rng.randrange(len(lines) - 1)
        how = rng.randrange(5)
        if how == 0:
            del made[at]
        elif how == 1:
            made.insert(at, made[at])
        elif how == 2:
            other = rng.randrange(len(lines) - 1)
            made[at], made[other] = made[other], made[at]
        elif how == 3:
            spoilt = bytearray(made[at])
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(7)
            made[at] = bytes(spoilt)
        else:
            document = json.loads(made[at])
            document.pop(rng.choice(list(document)))
            made[at] = json.dumps(document).encode()
        return made

    assert agreed(resigned(proven, lambda lines: lines)) == VerdictKind.PROVEN
    for _ in range(300):
        agreed(resigned(proven, edit))


def test_both_agree_on_statements_that_say_something_else(proven: bytes) -> None:
    first, _, body = proven.partition(b"\n")
    document = json.loads(unseal(first)[1])
    for name, value in (
        ("kind", "REFUTED"), ("kind", "UNPROVABLE"), ("removed", 7), ("recreated", 1), ("closing_nonce", None),
        ("domains", ["acme"]), ("control_hash", "00" * 32), ("request", 1), ("holders", []), ("conditions", {}),
        ("assumptions", []), ("scope", {"type": "tenant", "tenant": "umbrella"}),
    ):  # fmt: skip
        said = json.loads(json.dumps(document))
        said["predicate"]["verdict"][name] = value
        made = seal(json.dumps(said).encode(), AUDITOR) + b"\n" + body
        assert agreed(made) == INVALID, name


def test_both_agree_on_statements_that_say_something_else_around_the_verdict(proven: bytes) -> None:
    first, _, body = proven.partition(b"\n")
    document = json.loads(unseal(first)[1])
    for where, value in (
        ("claim", "Nothing was ever there."), ("not_claimed", []), ("anchoring", "anchoring: checkpoint"),
        ("timeline", []), ("checkpoint", {"origin": "x"}), ("request.reason", "none"), ("request.written_ms", 0),
        ("request.deadline_s", 5), ("membership.lives", 1), ("membership.keys", []), ("verdict.cleared", 3),
        ("verdict.evicted", 3), ("verdict.died", 1), ("verdict.rejected", 1), ("verdict.transfers_in_all", 2),
        ("verdict.holders.0.checksum", "01" * 16), ("verdict.holders.0.held", 9), ("verdict.holders.0.read_to", 1),
        ("verdict.holders.0.stated", "none"),
    ):  # fmt: skip
        said = json.loads(json.dumps(document))
        *path, last = where.split(".")
        at = said["predicate"]
        for name in path:
            at = at[int(name) if name.isdigit() else name]
        assert at[last] != value
        at[last] = value
        made = seal(json.dumps(said).encode(), AUDITOR) + b"\n" + body
        assert agreed(made) == INVALID, where


def test_both_want_the_same_keys(proven: bytes) -> None:
    assert agreed(proven, AUDITOR.public_key) == VerdictKind.PROVEN
    for key in (bytes(32), sha256(b"x"), b"", OPERATOR.public_key[:-1]):
        assert agreed(proven, key) == INVALID


def test_as_a_program_it_ends_with_the_documented_exit_codes(tmp_path: Path, proven: bytes) -> None:
    fleet = Fleet()
    pending = bundle(fleet.log, fleet.request)
    fleet.finish()
    fleet.a.store("acme", 1, admitted=2)
    fleet.a.say_state()
    refuted = bundle(fleet.log, fleet.request)
    other = Fleet()
    other.finish()
    other.a.store("acme", 1, admitted=None)
    unprovable = bundle(other.log, other.request)
    path = tmp_path / "bundle"
    for made, code, word in (
        (proven, 0, "PROVEN"),
        (refuted, 1, "REFUTED"),
        (unprovable, 2, "UNPROVABLE"),
        (pending, 3, "PENDING"),
        (proven[:-9], 4, ""),
    ):
        path.write_bytes(made)
        done = run(str(path), OPERATOR.public_key.hex())
        assert (done.returncode, done.stdout.strip()) == (code, word), done.stderr
        assert done.stderr.startswith("invalid, it proves nothing: ") == (code == 4)


def test_another_process_gives_the_same_reasons_in_the_same_order() -> None:
    program = (
        "from events.model.part import TransferStarted\n"
        "from tests.support.deletion_case import Fleet\n"
        "from tests.support.log import block\n"
        "fleet = Fleet()\n"
        "fleet.finish()\n"
        "about = dict(source='x', holder='gpu', group=0, profile=0, admitted_after=3)\n"
        "for name in ('acme', 'acme/eu'):\n"
        "    one = TransferStarted(transfer='to-' + name.replace('/', '-'), ids=(block(name, 5),), **about)\n"
        "    fleet.a.write(parts={name: [one]})\n"
        "print(fleet.verdict().model_dump_json())\n"
    )
    said = set()
    for seed in ("1", "2", "3", "4"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path.cwd())}
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=True, env=environment
        )
        assert done.stdout.count('"open_transfer"') == 2
        said.add(done.stdout)
    assert len(said) == 1


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(FILE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    return done


def test_the_key_may_be_a_file_and_wrong_usage_is_no_verdict(tmp_path: Path, proven: bytes) -> None:
    path, key, empty = tmp_path / "bundle", tmp_path / "operator.pub", tmp_path / "empty"
    path.write_bytes(proven)
    key.write_text(OPERATOR.public_key.hex() + "\n")
    empty.write_text("")
    done = run(str(path), str(key))
    assert (done.returncode, done.stdout.strip()) == (0, "PROVEN"), done.stderr
    for arguments, word in (
        ((), "give the bundle"),
        ((str(path),), "give the bundle"),
        ((str(path), OPERATOR.public_key.hex()[:-2]), "neither 64 hexadecimal characters nor a file"),
        ((str(path), str(tmp_path)), "neither"),
        ((str(path), str(empty)), "does not hold"),
        ((str(path), str(path)), "does not hold"),
        ((str(tmp_path / "none"), str(key)), "can't be read"),
    ):
        done = run(*arguments)
        assert (done.returncode, done.stdout, word in done.stderr) == (64, "", True), (arguments, done.stderr)
    helped = run("--help")
    assert (helped.returncode, "64 wrong usage" in helped.stdout) == (0, True)


@pytest.mark.parametrize("name", ["_type", "predicateType", "subject", "predicate"])
def test_a_statement_has_all_that_a_statement_has(proven: bytes, name: str) -> None:
    first, _, body = proven.partition(b"\n")
    statement = json.loads(unseal(first)[1])
    del statement[name]
    assert agreed(seal(json.dumps(statement).encode(), AUDITOR) + b"\n" + body) == INVALID


def test_half_a_character_is_none(proven: bytes) -> None:
    first, _, body = proven.partition(b"\n")
    statement = json.loads(unseal(first)[1])
    statement["subject"][0]["name"] = "\ud800"
    assert agreed(seal(json.dumps(statement).encode(), AUDITOR) + b"\n" + body) == INVALID
