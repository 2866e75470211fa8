"""`kvledger audit checkpoint` and `kvledger witness` on a real Kafka: one history, cosigned, or it is said."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from auditor.checkpoint import parse_head, parse_note
from auditor.tree import Tree
from events.ids import Role
from events.kafka.connection import KafkaConnection
from events.topic import AUDIT, EVENTS, TopicNames
from tests.integration.audit.test_command import Published, fleet, published
from tests.support.command import KVLEDGER, environment, failure, kvledger

__all__ = ["published"]


@contextmanager
def witness(home: Path, folder: Path, log_key: str) -> Iterator[dict[str, str]]:
    """A witness in a process of its own; what `witnesses.json` says of it."""
    name = f"{folder.name}.example/1"
    made = kvledger("witness", "key", "--name", name, "--folder", str(folder), home=home)
    assert made.returncode == 0, made.stderr
    process = subprocess.Popen(
        [*KVLEDGER, "witness", "serve", "--folder", str(folder), "--log", log_key, "--port", "0"],
        env=environment(home),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert " listens on http://" in line
        yield {"url": line.rpartition(" ")[2].strip(), "key": made.stdout.strip()}
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0
        process.stdout.close()


def started(command: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def name_witnesses(home: Path, quorum: int, *witnesses: dict[str, str]) -> None:
    (home / "witnesses.json").write_text(json.dumps({"quorum": quorum, "witnesses": witnesses}))


def make(published: Published) -> dict[str, object]:
    code, out, err = published.run("checkpoint", "--json")
    assert code == 0, err
    return dict(json.loads(out))


async def test_a_log_grows_under_checkpoints_that_witnesses_cosign(
    published: Published, tmp_path: Path
) -> None:
    log = published.log
    first, second, request = fleet(log)
    await published.publish()
    one = make(published)
    assert one["added"] == one["size"] == 3
    again = make(published)
    assert (again["added"], again["note"]) == (0, one["note"])

    key = str(one["key"])
    with (
        witness(published.home, tmp_path / "w0", key) as w0,
        witness(published.home, tmp_path / "w1", key) as w1,
    ):
        name_witnesses(published.home, 2, w0, w1)
        assert make(published)["witnessed"] == 2
        for hook in (first, second):
            hook.obey(request)
        nonce = log.nonce(request)
        for hook in (first, second):
            hook.ack(request, nonce=nonce)
        await published.publish()
        bundle = tmp_path / "proof.jsonl"
        code, verdict = published.verdict(request, "--bundle", str(bundle))
        assert (code, verdict.kind) == (0, "PROVEN")
        assert "anchoring: witnessed 2 of 2" in verdict.assumptions

    name_witnesses(published.home, 2, w0, {**w1, "url": "http://127.0.0.1:1"})
    first.store("umbrella", 9)
    await published.publish()
    code, verdict = published.verdict(request)
    assert (code, {reason.reason for reason in verdict.reasons}) == (2, {"witness_quorum_missing"})

    operator = log.control.signers[Role.OPERATOR].public_key.hex()
    mine = ("verify", str(bundle), "--key", operator, "--witness", w0["key"])
    assert published.run(*mine)[0] == 0
    stranger = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
    assert published.run(*mine, "--witness", stranger)[0] == 64
    with witness(published.home, tmp_path / "w2", key) as w2:
        code, _, err = published.run(*mine, "--witness", w2["key"])
        assert (code, "1 of the 2 witnesses" in err) == (2, True)
        assert published.run(*mine, "--witness", w2["key"], "--quorum", "1")[0] == 0


async def test_two_auditors_at_once_write_one_history(published: Published) -> None:
    log = published.log
    for worker in ("w0", "w10", "w200", "w3000"):
        log.hook(worker).open().store("acme", 1, 2)
    await published.publish()
    env = environment(published.home, KVLEDGER_KAFKA=published.kafka, KVLEDGER_TOPIC_PREFIX=published.prefix)
    command = [*KVLEDGER, "audit", "checkpoint", "--json"]
    running = [started(command, env) for _ in range(3)]
    answers = [json.loads(one.communicate(timeout=120)[0]) for one in running]
    assert [one.returncode for one in running] == [0, 0, 0]
    assert sum(answer["added"] for answer in answers) >= answers[0]["size"] == 5
    assert len({parse_head(parse_note(answer["note"].encode()).text) for answer in answers}) == 1


async def test_records_that_were_deleted_leave_the_anchor_at_the_next_segment(published: Published) -> None:
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.admin.records_to_delete import RecordsToDelete
    from aiokafka.structs import TopicPartition

    log = published.log
    first, second, request = fleet(log)
    await published.publish()
    make(published)
    sealed = len(log.events[first.partition])
    for hook in (first, second):
        hook.obey(request)
    nonce = log.nonce(request)
    for hook in (first, second):
        hook.ack(request, nonce=nonce)
    await published.publish()
    make(published)
    topic = TopicNames(published.prefix).of(EVENTS)
    admin = AIOKafkaAdminClient(bootstrap_servers=published.kafka)
    await admin.start()
    try:
        for offset, line in ((1, "its segment's start is gone"), (sealed, "anchoring: checkpoint")):
            where = {TopicPartition(topic, first.partition): RecordsToDelete(before_offset=offset)}
            await admin.delete_records(where)
            _, verdict = published.verdict(request)
            assert any(line in one for one in verdict.assumptions), verdict.assumptions
            assert "checkpoint_unverified" not in {reason.reason for reason in verdict.reasons}
    finally:
        await admin.close()


async def test_a_log_other_than_the_sealed_one_is_named(published: Published) -> None:
    """The auditor's own topic says that more was written than the log holds, as after a cut."""
    from auditor.log import append_audit
    from auditor.main_log import split
    from events.codec import dump
    from events.model.audit import AuditRecord, Segment

    log = published.log
    first, second, request = fleet(log)
    for hook in (first, second):
        hook.obey(request)
    nonce = log.nonce(request)
    for hook in (first, second):
        hook.ack(request, nonce=nonce)
    await published.publish()
    assert published.verdict(request)[0] == 0
    size = int(str(make(published)["size"]))
    end = len(log.events[first.partition])
    ghost = Segment(
        topic="kv.events", partition=first.partition, first=end, next=end + 3, records=3, root=Tree().root()
    )
    (statement,) = split([ghost], size, log.control.log, 9)
    signer = log.control.signers[Role.AUDITOR]
    raw = dump(statement)
    record = dump(AuditRecord(signer=signer.id, signature=signer.sign(raw), statement=raw))
    connection = KafkaConnection(published.kafka, TopicNames(published.prefix))
    assert connection.topic(AUDIT).endswith("kv.audit")
    await append_audit(connection, log.control.log, [record], 20.0)
    code, verdict = published.verdict(request)
    assert (code, {reason.reason for reason in verdict.reasons}) == (2, {"checkpoint_unverified"})
    env = {"KVLEDGER_KAFKA": published.kafka, "KVLEDGER_TOPIC_PREFIX": published.prefix}
    done = kvledger("audit", "checkpoint", home=published.home, env=env)
    assert done.returncode == 1
    assert "contradicts its checkpoints" in failure(done)


async def test_witnesses_that_cannot_be_used_are_refused_in_one_line(published: Published) -> None:
    log = published.log
    fleet(log)
    await published.publish()
    env = {"KVLEDGER_KAFKA": published.kafka, "KVLEDGER_TOPIC_PREFIX": published.prefix}
    for text in ("", "{}", '{"quorum":1,"witnesses":[]}', '{"quorum":0,"witnesses":[{"url":"x","key":"y"}]}'):
        (published.home / "witnesses.json").write_text(text)
        done = kvledger("audit", "checkpoint", home=published.home, env=env)
        assert done.returncode == 78
        assert "witnesses.json" in failure(done)
