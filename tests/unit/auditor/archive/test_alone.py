"""An archive alone gives the verdict that the log gave, or none: whatever becomes of its bytes."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from auditor.anchoring import WitnessPolicy
from auditor.archive.alone import judge_alone, read_control
from auditor.archive.failure import ArchiveError
from auditor.archive.log_archive import LogArchive
from auditor.archive.store import FsspecStore
from auditor.finding import Verdict
from events.ids import VerdictKind
from events.signing import verify
from tests.support.audit_log import RING, AuditLog
from tests.support.bundle import OPERATOR
from tests.support.memory_archive import SealedLog
from tests.unit.auditor.archive.test_archive import LOG, run

KEYS = {domain: known.alias_key for domain, known in RING.items()}


def proven_log(*, asked: bool = True) -> tuple[SealedLog, int]:
    sealed = SealedLog(AuditLog())
    hooks = sealed.log.hook("w0").open(), sealed.log.hook("w10").open()
    for hook in hooks:
        hook.store("acme", 1, 2, 3)
    sealed.seal()
    request = sealed.log.delete()
    for hook in hooks:
        hook.obey(request)
    nonce = sealed.log.nonce(request) if asked else None
    for hook in hooks if asked else ():
        hook.ack(request, nonce=nonce)
    sealed.seal()
    return sealed, request


async def judged(place: Path, request: int) -> Verdict:
    found = read_control(LogArchive(FsspecStore(str(place)), LOG), OPERATOR.public_key, verify)
    return (await judge_alone(found, [request], KEYS, WitnessPolicy(), verify)).verdicts[0]


def test_no_byte_of_it_can_be_changed_for_another_proof(tmp_path: Path) -> None:
    sealed, request = proven_log()
    run(sealed, FsspecStore(str(tmp_path)))
    whole = asyncio.run(judged(tmp_path, request))
    assert whole.kind is VerdictKind.PROVEN
    assert {at for at in whole.frontier if at.offset} == {*sealed.log.frontier()}
    rng, refused = random.Random(11), set[str]()
    for path in sorted([*tmp_path.rglob("*.raw"), *tmp_path.rglob("manifest.json")]):
        content = path.read_bytes()
        spoilt = [content[: rng.randrange(len(content))], b""]
        spoilt += [
            content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
            for at in rng.sample(range(len(content)), 12)
        ]
        for one in spoilt:
            path.write_bytes(one)
            try:
                found = asyncio.run(judged(tmp_path, request))
            except ArchiveError as error:
                refused.add(error.reason)
                continue
            assert found == whole or found.kind is not VerdictKind.PROVEN, path
        path.write_bytes(content)
    assert refused == {"archive_garbled", "archive_unverified", "archive_foreign"} or refused == {
        "archive_garbled",
        "archive_unverified",
    }


def test_a_question_that_was_never_asked_leaves_it_pending(tmp_path: Path) -> None:
    sealed, request = proven_log(asked=False)
    run(sealed, FsspecStore(str(tmp_path)))
    found = asyncio.run(judged(tmp_path, request))
    assert found.kind is VerdictKind.PENDING
    assert {reason.condition for reason in found.reasons} == {"P9"}


@pytest.mark.parametrize("topic", ["kv.control", "kv.events"])
def test_an_older_or_shortened_archive_is_judged_as_of_its_end_or_not_at_all(
    tmp_path: Path, topic: str
) -> None:
    sealed, request = proven_log()
    run(sealed, FsspecStore(str(tmp_path)))
    (manifest,) = tmp_path.glob("*/manifest.json")
    document = json.loads(manifest.read_bytes())
    last = max(one["leaf"] for one in document["kept"] if document["segments"][one["leaf"]]["topic"] == topic)
    document["kept"] = [one for one in document["kept"] if one["leaf"] != last]
    manifest.write_text(json.dumps(document))
    if topic == "kv.control":
        with pytest.raises(ArchiveError, match="archive_unverified"):
            asyncio.run(judged(tmp_path, request))
        return
    found = asyncio.run(judged(tmp_path, request))
    assert found.kind is VerdictKind.PENDING
    assert "checkpoint_unverified" in {reason.reason for reason in found.reasons}


def test_an_archive_of_version_1_is_read_and_taken_on(tmp_path: Path) -> None:
    sealed, request = proven_log()
    run(sealed, FsspecStore(str(tmp_path)))
    (manifest,) = tmp_path.glob("*/manifest.json")
    written = json.loads(manifest.read_bytes())
    old = {name: value for name, value in written.items() if name != "subjects"}
    manifest.write_text(json.dumps(old | {"version": 1}))
    assert asyncio.run(judged(tmp_path, request)).kind is VerdictKind.PROVEN
    done = run(sealed, FsspecStore(str(tmp_path)))
    assert (done.added, done.adopted) == (0, 0)
    assert json.loads(manifest.read_bytes()) == written
