"""Every byte of a proven bundle changed, with and without an auditor who signs the result.

`python -m tests.model.auditor.mutation` changes each byte in each way, on every core, lets both verifiers judge, and
prints what became of it. Exit code 1 if a changed bundle is proven that says anything else than the first did.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Any

from auditor.proof import BundleError, seal, unseal
from events.chain import sha256
from events.ids import VerdictKind
from events.signing import Signer
from tests.support.audit_log import AuditLog
from tests.support.bundle import AUDITOR, INVALID, OPERATOR, bundle, first_says, second_says

STRANGER = Signer.from_seed(sha256(b"stranger"))
WAYS = ("flip", "drop", "double", "other")
STRUCTURE = frozenset(b'{}[]:,"\n')
WORD = frozenset({"r", "l", "x", "i"})
"""What a bundle says by the auditor's word alone: digests of what concerns somebody else, and why."""
CHUNK = 250
SIGNERS: dict[str, Signer | None] = {
    "as it is": None,
    "signed again by the auditor": AUDITOR,
    "signed again by a stranger": STRANGER,
}


@dataclass
class Outcome:
    """`same`: proven still, and nothing of what it says has changed. `word`: an auditor has signed another digest
    of what nobody is shown, by field. `wrong`: proven, and something else; or the verifiers differ."""

    invalid: int = 0
    same: int = 0
    word: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __iadd__(self, more: Outcome) -> Outcome:
        self.invalid += more.invalid
        self.same += more.same
        self.word += more.word
        self.wrong += more.wrong
        return self

    @property
    def total(self) -> int:
        return self.invalid + self.same + self.word.total() + len(self.wrong)


@lru_cache(maxsize=1)
def proven() -> bytes:
    """A small bundle with every kind of line that an unanchored one has: another tenant's records, garbage, and a
    stranger's stream would make it unprovable, so that is left out."""
    log = AuditLog()
    hook = log.hook().open()
    hook.store("acme", 1)
    hook.store("umbrella", 1)
    log.control.records.append((b"garbage", None))
    request = log.delete()
    hook.obey(request)
    hook.ack(request, nonce=log.nonce(request))
    made = bundle(log, request)
    assert judged(made) == VerdictKind.PROVEN
    return made


def judged(made: bytes) -> str:
    """What both say, or both answers where they differ."""
    first, second = first_says(made, OPERATOR.public_key), second_says(made, OPERATOR.public_key)
    return first if first == second else f"{first} and {second}"


def changed(made: bytes, at: int, way: str) -> bytes:
    """One byte flipped, left out, doubled, or made another digit or letter of its kind."""
    byte = made[at : at + 1]
    if way == "flip":
        new = bytes([byte[0] ^ 1 << at % 8])
    elif way == "drop":
        new = b""
    elif way == "double":
        new = byte * 2
    else:
        new = bytes([byte[0] + 1 if byte[0] % 16 < 9 else byte[0] - 1])
    return made[:at] + new + made[at + 1 :]


def resigned(made: bytes, signer: Signer) -> bytes | None:
    """The same evidence under a statement that names it; None if there is no statement left."""
    first, _, body = made.partition(b"\n")
    try:
        statement = json.loads(unseal(first)[1])
        statement["subject"][1]["digest"]["sha256"] = sha256(body).hex()
    except (BundleError, ValueError, KeyError, IndexError, TypeError):
        return None
    return seal(json.dumps(statement).encode(), signer) + b"\n" + body


def decoded(line: bytes) -> dict[str, Any]:
    """A line of evidence by its values: hex and base64 are the bytes that they stand for."""
    document: dict[str, Any] = json.loads(line)
    for name in ("r", "l", "x", "alias_key"):
        if isinstance(document.get(name), str):
            document[name] = document[name].lower()
    if "d" in document:
        document["d"] = [digest.lower() for digest in document["d"]]
    if isinstance(document.get("b"), dict):
        document["b"] = {int(index): part for index, part in document["b"].items()}
    if isinstance(document.get("s"), str):
        document["s"] = base64.b64decode(document["s"])
    return document


def differing(honest: bytes, made: bytes) -> set[str]:
    """Fields of the evidence whose values differ, lines compared one by one."""
    before, after = (
        [line for line in raw.partition(b"\n")[2].split(b"\n") if line] for raw in (honest, made)
    )  # Both verifiers pass empty lines over.
    if len(after) != len(before):
        return {"lines"}
    names: set[str] = set()
    for one, other in zip(before, after, strict=True):
        if one != other:
            left, right = decoded(one), decoded(other)
            names |= {name for name in {*left, *right} if left.get(name) != right.get(name)}
    return names


def attempt(honest: bytes, at: int, way: str, signer: Signer | None, outcome: Outcome) -> None:
    """Changes one byte and notes what both verifiers make of it."""
    made: bytes | None = changed(honest, at, way)
    if signer is not None and made is not None:
        made = resigned(made, signer)
        if made is None:
            outcome.invalid += 1
            return
    assert made is not None
    verdict = judged(made)
    if verdict == INVALID or (signer is AUDITOR and _ignored_told(honest, made, verdict)):
        outcome.invalid += 1
    elif verdict != VerdictKind.PROVEN:
        outcome.wrong.append(f"byte {at}, {way}: {verdict}")
    elif signer is None:
        same = unseal(made.partition(b"\n")[0])[1] == unseal(honest.partition(b"\n")[0])[1]
        same = same and made.partition(b"\n")[2] == honest.partition(b"\n")[2]
        if same:
            outcome.same += 1
        else:
            outcome.wrong.append(f"byte {at}, {way}: proven")
    else:
        names = differing(honest, made)
        if not names and signer is AUDITOR:
            outcome.same += 1
        elif names <= WORD and signer is AUDITOR:
            outcome.word.update(names)
        else:
            outcome.wrong.append(f"byte {at}, {way}: proven with other {', '.join(sorted(names))}")


def _ignored_told(honest: bytes, made: bytes, verdict: str) -> bool:
    """Whether nothing was changed but why control records are ignored, in the statement or in the evidence: the
    second verifier takes that as the auditor's word."""
    if verdict != f"{INVALID} and {VerdictKind.PROVEN}" or not differing(honest, made) <= {"i"}:
        return False
    before, after = (json.loads(unseal(raw.partition(b"\n")[0])[1]) for raw in (honest, made))
    for statement in (before, after):
        del statement["predicate"]["verdict"]["records_ignored"], statement["subject"][1]
    return bool(before == after)


def attempts(places: Sequence[int], ways: Sequence[str], signer: str) -> Outcome:
    """Of the proven bundle; `signer` is one of SIGNERS."""
    outcome = Outcome()
    for at in places:
        for way in ways:
            attempt(proven(), at, way, SIGNERS[signer], outcome)
    return outcome


def structural(made: bytes) -> list[int]:
    """Brackets, quotes, commas, colons and newlines: of the envelope, and of the first line of each kind."""
    kinds: set[str] = set()
    places: list[int] = []
    start = 0
    for line in made.split(b"\n"):
        kind = json.loads(line).get("t", "envelope") if line else ""
        if kind not in kinds:
            kinds.add(kind)
            places += [start + at for at in range(len(line)) if line[at] in STRUCTURE]
            places += [start + len(line)] if start + len(line) < len(made) else []
        start += len(line) + 1
    return places


def chunks(places: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(places), CHUNK):
        yield places[start : start + CHUNK]


def main() -> int:
    parser = argparse.ArgumentParser(description="Change every byte of a proven bundle.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=list(WAYS))
    parser.add_argument("--sample", type=int, help="only so many bytes, drawn at random")
    options = parser.parse_args()
    places = list(range(len(proven())))
    if options.sample:
        places = sorted(random.sample(places, options.sample))
    began = time.monotonic()
    wrong = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in SIGNERS:
            outcome = Outcome()
            for one in pool.map(attempts, chunks(places), repeat(options.ways), repeat(name)):
                outcome += one
            wrong += len(outcome.wrong)
            words = ", ".join(f"{field_} {count}" for field_, count in sorted(outcome.word.items()))
            print(
                f"{name}: {len(places)} bytes, {outcome.total} changes: {outcome.invalid} invalid, "
                f"{outcome.same} say the same, by the auditor's word alone: {words or 'none'}, "
                f"{len(outcome.wrong)} wrong",
                flush=True,
            )
            for line in outcome.wrong[:10]:
                print(f"   {line}")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
