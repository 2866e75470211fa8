"""`kvledger audit archive` on a real Kafka: what it drops is still proven, and nothing is that was tampered with."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import duckdb
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from auditor.finding import Verdict
from events.chain import sha256
from events.codec import dump
from events.ids import Role
from events.kafka.connection import KafkaConnection
from events.kafka.topic_admin import drop_records
from events.model.audit import SubjectBound
from events.model.control import SubjectScope
from events.topic import EVENTS, SUBJECTS, TopicNames
from kvledger.archiving import archive_log
from kvledger.command.archive import archive as archive_command
from kvledger.command.audit import audit_requests
from kvledger.failure import CommandError
from kvledger.settings import Settings
from tests.integration.audit.test_checkpoint import make
from tests.integration.audit.test_command import Published, fleet, published
from tests.support.bundle import AUDITOR, second_says
from tests.support.command import failure, kvledger
from tests.support.offline import Offline, without_network

__all__ = ["published"]


def archive(published: Published, *more: str) -> tuple[int, dict[str, object], str]:
    code, out, err = published.run("archive", "--to", str(published.home.parent / "archive"), "--json", *more)
    return code, json.loads(out) if out else {}, err


async def deleted(published: Published) -> int:
    """A deletion that every holder has carried out, in a log of several segments; the request."""
    log = published.log
    first, second, request = fleet(log)
    await published.publish()
    make(published)
    for hook in (first, second):
        hook.obey(request)
    nonce = log.nonce(request)
    for hook in (first, second):
        hook.ack(request, nonce=nonce)
    await published.publish()
    make(published)
    return request


async def test_a_log_that_kafka_has_dropped_is_proven_from_its_archive(
    published: Published, tmp_path: Path
) -> None:
    request = await deleted(published)
    place = tmp_path / "archive"
    code, whole = published.verdict(request)
    assert (code, whole.kind) == (0, "PROVEN")

    code, state, _ = archive(published, "--status")
    assert (code, state["kept"]) == (0, 0)
    code, state, err = archive(published)
    assert (code, state["added"], state["kept"]) == (0, state["leaves"], state["leaves"]), err
    code, again, _ = archive(published)
    assert (code, again["added"], again["adopted"]) == (0, 0, 0)
    metrics = tmp_path / "archive.prom"
    code, state, _ = archive(published, "--release", "--metrics", str(metrics))
    assert (code, state["released"]) == (0, {})  # nothing is 14 days old
    assert 'kvledger_archive_unarchived_offsets{topic="kv.events",partition="2"} 0' in metrics.read_text()
    code, state, _ = archive(published, "--release", "--keep-days", "0")
    ends = {str(p): len(records) for p, records in published.log.events.items() if records}
    assert (code, state["released"]) == (0, ends)

    code, alone = published.verdict(request)
    assert (code, {reason.reason for reason in alone.reasons}) == (
        3,
        {"retention_truncated", "not_evaluated"},
    )

    operator = published.log.control.signers[Role.OPERATOR].public_key
    bundle = tmp_path / "proof.jsonl"
    code, found = published.verdict(request, "--archive", str(place), "--bundle", str(bundle))
    assert code == 0
    assert found == whole
    code, out, _ = published.run("verify", str(bundle), "--key", operator.hex(), "--json")
    assert (code, json.loads(out)["kind"]) == (0, "PROVEN")
    assert second_says(bundle.read_bytes(), operator) == "PROVEN"

    checked = kvledger(
        "audit",
        "archive",
        "--to",
        str(place),
        "--check",
        "--key",
        operator.hex(),
        home=tmp_path / "elsewhere",
    )
    assert checked.returncode == 0, checked.stderr


async def test_an_archive_alone_gives_the_same_verdict_without_a_broker(
    published: Published, tmp_path: Path
) -> None:
    request = await deleted(published)
    place = tmp_path / "archive"
    code, whole = published.verdict(request)
    assert (code, whole.kind) == (0, "PROVEN")
    assert archive(published, "--release", "--keep-days", "0")[0] == 0
    operator = published.log.control.signers[Role.OPERATOR].public_key
    bundle = tmp_path / "proof.jsonl"

    def alone(place: Path, *more: str) -> Offline:
        given = ("audit", "run", "--request", str(request), "--archive", str(place), "--offline", "--json")
        return without_network(*given, *more, home=published.home)

    done = alone(place, "--key", operator.hex(), "--bundle", str(bundle))
    assert done.code == 0, done.error
    assert not done.refused
    assert Verdict.model_validate_json(done.out) == whole
    assert f"kv.control/0@{len(published.log.control.records)}" in done.error
    code, out, _ = published.run("verify", str(bundle), "--key", operator.hex(), "--json")
    assert (code, json.loads(out)["kind"]) == (0, "PROVEN")
    assert second_says(bundle.read_bytes(), operator) == "PROVEN"

    for kind in ("byte", "missing"):
        shutil.copytree(place, tmp_path / kind)
        damage(tmp_path / kind, kind)
        done = alone(tmp_path / kind)
        found = Verdict.model_validate_json(done.out)
        assert (done.code, found.kind) in ((2, "UNPROVABLE"), (3, "PENDING")), kind
        assert "checkpoint_unverified" in {reason.reason for reason in found.reasons}, kind
    for kind, code, word in (
        ("unlisted", 3, "checkpoint_unverified"),
        ("shorter", 78, "archive_garbled"),
    ):
        shutil.copytree(place, tmp_path / kind)
        damage(tmp_path / kind, kind)
        done = alone(tmp_path / kind)
        assert (done.code, word in done.out + done.error, "Traceback" in done.error) == (code, True, False)
    shutil.copytree(place, tmp_path / "control")
    damage(tmp_path / "control", "cut", topic="kv.control")
    done = alone(tmp_path / "control")
    assert (done.code, "archive_" in done.error, "Traceback" in done.error) == (78, True, False)
    done = alone(place, "--key", "00" * 32)
    assert (done.code, "archive_foreign" in done.error) == (78, True)
    done = alone(tmp_path / "nothing")
    assert (done.code, "archive_missing" in done.error) == (78, True)
    done = without_network(
        "audit", "run", "--request", "2", "--archive", str(place), "--offline", home=published.home
    )
    assert (done.code, "no deletion request 2" in done.error) == (64, True)


async def test_a_subjects_bindings_are_sealed_archived_and_needed_for_its_proof(
    published: Published, tmp_path: Path
) -> None:
    log, pseudonym = published.log, sha256(b"patient 17")
    hook = log.hook("w0").open()
    leaf = hook.store("acme", 1, 2, 3)[-1]
    bound = dump(SubjectBound(subject=pseudonym, domain="acme", leaves=(leaf,)))
    signed = log.control.signers[Role.CONTROL].sign(bound)
    request = log.delete(
        SubjectScope(domain="acme", subject=pseudonym.hex(), pseudonym=pseudonym, leaves=(leaf,))
    )
    hook.remove("acme", [leaf], request)
    hook.ack(request, "acme")
    hook.ack(request, "acme", nonce=log.nonce(request))
    await published.publish()
    await published._send(TopicNames(published.prefix).of(SUBJECTS), 0, [(bound, signed)])
    code, whole = published.verdict(request)
    assert (code, whole.kind) == (0, "PROVEN")

    place = tmp_path / "archive"
    given = ("audit", "run", "--request", str(request), "--archive", str(place), "--offline", "--json")
    assert archive(published)[0] == 0
    done = without_network(*given, home=published.home)  # the audit sealed the log, not kv.subjects
    found = Verdict.model_validate_json(done.out)
    assert (done.code, found.kind) == (2, "UNPROVABLE")
    assert "kv.subjects was not sealed" in done.out

    make(published)
    code, state, _ = archive(published)
    assert (code, state["subjects_to"]) == (0, 1)
    before = {file: file.stat().st_mtime_ns for file in place.rglob("*") if file.is_file()}
    assert archive(published)[0] == 0
    assert before == {file: file.stat().st_mtime_ns for file in place.rglob("*") if file.is_file()}
    done = without_network(*given, home=published.home)
    assert (done.code, Verdict.model_validate_json(done.out)) == (0, whole), done.error
    check(place)
    with duckdb.connect() as connection:
        asked = f"SELECT kind, body ->> '$.domain' FROM '{place}/*/kv.subjects/0/*.records.parquet'"
        assert connection.execute(asked).fetchall() == [("subject_bound", "acme")]

    (raw,) = place.glob("*/kv.subjects/0/*.raw")
    content = raw.read_bytes()
    for spoilt in (content[:-3], content[:24], content.replace(pseudonym.hex().encode(), b"0" * 64), None):
        raw.unlink(missing_ok=True)
        if spoilt is not None:
            raw.write_bytes(spoilt)
        done = without_network(*given, home=published.home)
        assert (done.code, "checkpoint_unverified" in done.out, "Traceback" in done.error) == (2, True, False)
        with pytest.raises(CommandError, match="archive_"):
            check(place)


async def test_retention_that_runs_ahead_of_the_archive_is_an_error(published: Published) -> None:
    await deleted(published)
    settings = Settings(home=published.home, kafka=published.kafka, topic_prefix=published.prefix)
    connection = KafkaConnection(published.kafka, TopicNames(published.prefix))
    place = str(published.home.parent / "archive")
    await archive_log(settings, place, write=True, release=False, keep_days=0)
    first = published.log.hooks[0]
    first.store("umbrella", 9)
    await published.publish()
    make(published)
    await drop_records(connection, EVENTS, {first.partition: len(published.log.events[first.partition])})
    code, state, err = archive(published)
    assert (code, len(list(state["lost"]))) == (1, 1)  # type: ignore[call-overload]
    assert "retention_ahead_of_archive" in err
    assert "was dropped before it was archived" in err
    again = await archive_log(settings, place, write=True, release=False, keep_days=0)
    assert (again.lost, again.dangers) == ([], [])
    first.store("umbrella", 10)
    await published.publish()
    await keep_only(published, 1 << 30)
    code, state, err = archive(published, "--status")
    assert (code, state["lost"]) == (1, [])
    assert "retention of 1073741824 bytes" in err


async def keep_only(published: Published, size: int) -> None:
    """Gives kv.events a retention by size, as an operator might."""
    admin = AIOKafkaAdminClient(bootstrap_servers=published.kafka)
    await admin.start()
    try:
        name = TopicNames(published.prefix).of(EVENTS)
        await admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name, {"retention.bytes": str(size)})]
        )
    finally:
        await admin.close()


async def test_half_of_a_log_dropped_says_so_and_is_proven_with_the_archive(
    published: Published, tmp_path: Path
) -> None:
    request = await deleted(published)
    place = str(tmp_path / "archive")
    assert archive(published)[0] == 0
    _, whole = published.verdict(request)
    connection = KafkaConnection(published.kafka, TopicNames(published.prefix))
    await drop_records(connection, EVENTS, {p: 1 for p, told in published.log.events.items() if told})
    code, alone = published.verdict(request)
    assert code == 3
    assert "retention_truncated" in {reason.reason for reason in alone.reasons}
    for hook in published.log.hooks:
        published.log.fence(hook)
    await published.publish()
    code, alone = published.verdict(request)
    assert (code, alone.kind) == (2, "UNPROVABLE")
    assert {reason.reason for reason in alone.reasons} == {"retention_truncated"}
    code, found = published.verdict(request, "--archive", place)
    assert (code, found.kind, found.holders) == (0, "PROVEN", whole.holders)
    assert found.conditions == whole.conditions


def damage(place: Path, kind: str, topic: str = "kv.events") -> None:
    """One kind of damage to the archive of a log whose kv.events Kafka has dropped."""
    files = sorted(place.glob(f"*/{topic}/*/*.raw"))
    raw = next(file for file in files if file.stat().st_size > 2_000 or topic != "kv.events")
    manifest = next(place.glob("*/manifest.json"))
    document = json.loads(manifest.read_bytes())
    if kind == "byte":
        content = bytearray(raw.read_bytes())
        content[-9] ^= 1
        raw.write_bytes(content)
    elif kind == "cut":
        raw.write_bytes(raw.read_bytes()[:-3])
    elif kind == "missing":
        raw.unlink()
    elif kind == "swapped":
        shutil.copy(next(file for file in files if file != raw), raw)
    elif kind == "unlisted":
        kept = [one for one in document["kept"] if document["segments"][one["leaf"]]["topic"] == "kv.control"]
        manifest.write_text(json.dumps(document | {"kept": kept}))
    elif kind == "shorter":
        manifest.write_text(json.dumps(document | {"segments": document["segments"][:-1]}))
    else:
        manifest.write_text(json.dumps(document | {"log": "another"}))


async def test_a_damaged_archive_proves_nothing_and_is_named(
    published: Published, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = await deleted(published)
    settings = Settings(home=published.home, kafka=published.kafka, topic_prefix=published.prefix)
    place = tmp_path / "archive"
    state = await archive_log(settings, str(place), write=True, release=True, keep_days=0)
    assert state.released
    for kind in ("byte", "cut", "missing", "swapped"):
        shutil.copytree(place, tmp_path / kind)
        damage(tmp_path / kind, kind)
        (found,) = await audit_requests(settings, [request], wait_s=0, archive=str(tmp_path / kind))
        assert found.kind in ("UNPROVABLE", "PENDING"), kind
        assert "checkpoint_unverified" in {reason.reason for reason in found.reasons}, kind
        with pytest.raises(CommandError, match=r"archive_(missing|garbled|unverified)"):
            await asyncio.to_thread(check, tmp_path / kind)
    for kind in ("shorter", "foreign"):
        shutil.copytree(place, tmp_path / kind)
        damage(tmp_path / kind, kind)
        with pytest.raises(CommandError, match="archive_"):
            await audit_requests(settings, [request], wait_s=0, archive=str(tmp_path / kind))

    damage(place, "unlisted")
    capsys.readouterr()
    (found,) = await audit_requests(settings, [request], wait_s=0, archive=str(place))
    assert found.kind in ("UNPROVABLE", "PENDING")
    assert "was dropped and is not in the archive" in capsys.readouterr().err
    state = await archive_log(settings, str(place), write=True, release=True, keep_days=0)
    assert (state.added, state.problems, state.lost) == (0, [], [])
    assert state.adopted
    (found,) = await audit_requests(settings, [request], wait_s=0, archive=str(place))
    assert found.kind == "PROVEN"


def check(place: Path) -> None:
    archive_command(str(place), check=True, key=AUDITOR.public_key.hex())


async def test_an_archive_that_is_none_or_not_there_is_refused_in_one_line(
    published: Published, tmp_path: Path
) -> None:
    await deleted(published)
    env = {"KVLEDGER_KAFKA": published.kafka, "KVLEDGER_TOPIC_PREFIX": published.prefix}
    (tmp_path / "file").write_text("no folder")
    for url, code, word in (
        (str(tmp_path / "nothing"), 78, "archive_missing"),
        ("nothing://there", 69, "archive_unavailable"),
        (str(tmp_path / "file"), 78, "archive_missing"),
    ):
        done = kvledger("audit", "run", "--wait", "0", "--archive", url, home=published.home, env=env)
        assert (done.returncode, word in failure(done)) == (code, True)
    done = kvledger("audit", "archive", "--to", str(tmp_path / "file"), home=published.home, env=env)
    assert (done.returncode, "archive_unavailable" in failure(done)) == (69, True)
