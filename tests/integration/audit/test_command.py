"""`kvledger audit` as a user runs it, on a log that was written to a real Kafka record by record."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from auditor.anchoring import Anchoring
from auditor.finding import Verdict
from auditor.log import PartitionReader
from auditor.verdict import judge
from events.chain import sha256
from events.ids import Role
from events.kafka.connection import KafkaConnection, make_producer
from events.kafka.topic_admin import TopicAdmin
from events.model.control import Revoked
from events.topic import CONTROL, EVENTS, SIGNATURE_HEADER, TopicNames
from kvledger.failure import ExitCode
from kvledger.keyfile import key_path, ring_path, write_private
from tests.support.audit_log import RING, AuditLog, HookStub
from tests.support.command import failure, kvledger
from tests.support.log import ControlLog
from tests.support.timestamp_authority import TimestampAuthority


@dataclass
class Published:
    """An in-memory log and the real one that follows it; `publish` sends what is new."""

    home: Path
    kafka: str
    prefix: str
    producer: object
    log: AuditLog = field(default_factory=lambda: AuditLog(ControlLog(partitions=4)))
    sent: dict[str, int] = field(default_factory=dict)

    async def publish(self) -> None:
        names = TopicNames(self.prefix)
        await self._send(names.of(CONTROL), 0, self.log.control.records)
        for partition, records in self.log.events.items():
            await self._send(names.of(EVENTS), partition, [(r.value, r.signature) for r in records])

    async def _send(self, topic: str, partition: int, records: list[tuple[bytes, bytes | None]]) -> None:
        where = f"{topic}/{partition}"
        for value, signature in records[self.sent.get(where, 0) :]:
            headers = [] if signature is None else [(SIGNATURE_HEADER, signature)]
            await self.producer.send_and_wait(  # type: ignore[attr-defined]
                topic, value, key=b"k", partition=partition, headers=headers
            )
        self.sent[where] = len(records)

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
        where = {"KVLEDGER_KAFKA": self.kafka, "KVLEDGER_TOPIC_PREFIX": self.prefix}
        done = kvledger("audit", *arguments, home=self.home, env=where | (env or {}))
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    def verdict(self, request: int, *more: str) -> tuple[int, Verdict]:
        code, out, _ = self.run("run", "--request", str(request), "--wait", "0", "--json", *more)
        return code, Verdict.model_validate_json(out)


@pytest.fixture
async def published(kafka: str, topic_prefix: str, home: Path) -> AsyncIterator[Published]:
    connection = KafkaConnection(kafka, TopicNames(topic_prefix))
    await TopicAdmin(connection, partitions=4, replication=1).ensure()
    producer = make_producer(connection)
    await producer.start()
    made = Published(home, kafka, topic_prefix, producer)
    for role in Role:
        seed = sha256(role.value.encode()).hex()
        write_private(key_path(home, role), seed)
    secrets = {name: sha256(b"secret of " + name.encode()).hex() for name in RING}
    write_private(ring_path(home), json.dumps({"domains": secrets}))
    try:
        yield made
    finally:
        await producer.stop()


def fleet(log: AuditLog) -> tuple[HookStub, HookStub, int]:
    hooks = log.hook("w0").open(), log.hook("w10").open()
    for hook in hooks:
        hook.store("acme", 1, 2, 3)
        hook.store("umbrella", 1)
    return *hooks, log.delete()


async def test_each_verdict_has_its_exit_code_and_its_record(published: Published, tmp_path: Path) -> None:
    log = published.log
    first, second, request = fleet(log)
    first.obey(request)
    await published.publish()
    code, verdict = published.verdict(request)
    assert (code, verdict.kind) == (3, "PENDING")
    second.obey(request)
    nonce = log.nonce(request)
    for hook in (first, second):
        hook.ack(request, nonce=nonce)
    await published.publish()
    bundle = tmp_path / "proof.jsonl"
    code, verdict = published.verdict(request, "--bundle", str(bundle))
    assert (code, verdict.kind) == (0, "PROVEN")
    assert verdict == judge(log.evidence(request), verdict.frontier, anchoring=Anchoring(checkpoint=True))

    operator = log.control.signers[Role.OPERATOR].public_key.hex()
    elsewhere = tmp_path / "elsewhere"
    code, out, _ = published.run("verify", str(bundle), "--key", operator, "--json")
    assert (code, json.loads(out)["kind"]) == (0, "PROVEN")
    edited = bytearray(bundle.read_bytes())
    edited[-40] ^= 1
    elsewhere.write_bytes(edited)
    for path, key, expected in (
        (elsewhere, operator, 4),
        (bundle, "00" * 32, 4),
        (home_file(tmp_path), operator, 4),
        (tmp_path / "none", operator, ExitCode.USAGE),
        (bundle, "00", ExitCode.USAGE),
    ):
        done = kvledger("audit", "verify", str(path), "--key", key, home=published.home)
        assert done.returncode == expected
        failure(done)

    code, out, _ = published.run("show", str(request))
    assert (code, out.splitlines()[0]) == (0, f"request {request}: PROVEN")
    for _ in range(2):
        code, out, _ = published.run("run", "--request", str(request), "--wait", "0", "--incremental")
        assert code == 0
    assert "was read by an earlier audit of this auditor" in out

    first.store("acme", 1, admitted=request - 1)
    first.say_state()
    await published.publish()
    code, verdict = published.verdict(request)
    assert (code, verdict.kind, verdict.counterexamples[0].worker) == (1, "REFUTED", "w0")
    assert published.run("show", str(request))[0] == 1
    assert published.run("run", "--all", "--wait", "0")[0] == 1


async def test_an_auditor_whose_key_was_revoked_writes_no_nonce(published: Published) -> None:
    log = published.log
    first, second, request = fleet(log)
    for hook in (first, second):
        hook.obey(request)
    log.control.append(Revoked(public_key=log.control.signers[Role.AUDITOR].public_key), Role.OPERATOR)
    await published.publish()
    code, out, err = published.run("run", "--request", str(request), "--wait", "0")
    assert (code, out, "(revoked_signer); nothing was written" in err) == (78, "", True)
    assert await control_end(published) == len(log.control.records)


async def control_end(published: Published) -> int:
    """Where kv.control ends."""
    reader = PartitionReader(KafkaConnection(published.kafka), TopicNames(published.prefix).of(CONTROL), 20.0)
    await reader.start(1)
    try:
        return (await reader.ends())[0]
    finally:
        await reader.stop()


def home_file(folder: Path) -> Path:
    path = folder / "garbage"
    path.write_bytes(b"\x00\xff garbage")
    return path


async def test_garbage_on_both_topics_delays_no_proof_and_a_gap_does(published: Published) -> None:
    log = published.log
    first, second, request = fleet(log)
    log.control.records.append((b"\x00\xffgarbage", None))
    for garbage in (b"", b"\xff", b"{}", b'{"v":9}'):
        log.events[first.partition].append(type(log.events[first.partition][0])(garbage, None))
    for hook in (first, second):
        hook.obey(request)
    nonce = log.nonce(request)
    for hook in (first, second):
        hook.ack(request, nonce=nonce)
    await published.publish()
    assert published.verdict(request)[0] == 0
    second.store("acme", 8, lost=True)
    second.store("acme", 9)
    second.ack(request, nonce=nonce)
    await published.publish()
    code, verdict = published.verdict(request)
    assert code == 3
    assert {reason.reason for reason in verdict.reasons} == {"seq_gap"}
    log.fence(second)
    await published.publish()
    assert published.verdict(request)[0] == 2


async def test_a_request_that_is_none_and_a_log_that_is_away_say_so(published: Published) -> None:
    await published.publish()
    done = kvledger(
        "audit",
        "run",
        "--request",
        "3",
        home=published.home,
        env={"KVLEDGER_KAFKA": published.kafka, "KVLEDGER_TOPIC_PREFIX": published.prefix},
    )
    assert done.returncode == ExitCode.USAGE
    assert "no deletion request 3" in failure(done)
    done = kvledger("audit", "run", home=published.home, env={"KVLEDGER_KAFKA": "127.0.0.1:1"})
    assert done.returncode == 69
    failure(done)


async def test_a_period_is_reported_whole_stamped_and_put_on_paper(
    published: Published, tmp_path: Path
) -> None:
    log = published.log
    first, second, request = fleet(log)
    for hook in (first, second):
        hook.obey(request)
    nonce = log.nonce(request)
    for hook in (first, second):
        hook.ack(request, nonce=nonce)
    await published.publish()
    report, proof, pem = tmp_path / "report.jsonl", tmp_path / "proof.jsonl", tmp_path / "tsa.pem"
    operator = log.control.signers[Role.OPERATOR].public_key.hex()
    code, out, _ = published.run("report", str(report))
    assert (code, "1 NOT JUDGED" in out) == (3, True)
    with TimestampAuthority() as tsa:
        pem.write_bytes(tsa.root)
        stamping = {"KVLEDGER_TSA_URL": tsa.url, "KVLEDGER_TSA_CERTIFICATE": str(pem)}
        judging = ("run", "--request", str(request), "--wait", "0", "--bundle", str(proof))
        code, _, error = published.run(*judging, env=stamping)
        assert (code, "time-stamped by CN=Test TSA" in error) == (0, True)
        code, out, error = published.run("report", str(report), env=stamping)
        assert (code, tsa.asked) == (0, 2), error
    assert f"requests 0 to {len(log.control.records)} of log" in out
    assert "1 PROVEN; 0 late" in out
    for path in (report, proof):
        code, out, error = published.run("verify", str(path), "--key", operator, "--tsa", str(pem))
        assert (code, "time-stamped by CN=Test TSA" in out) == (0, True), error
        page, tables = tmp_path / f"{path.stem}.html", tmp_path / path.stem
        code, _, error = published.run(
            "render", str(path), "--key", operator, "--html", str(page), "--csv", str(tables)
        )
        assert code == 0, error
        assert sha256(path.read_bytes()).hex() in page.read_text()
        assert (tables / "about.csv").exists()
    later = request + 1
    code, out, _ = published.run("report", str(report), "--from", str(later))
    assert (code, "no request" in out) == (0, True)
    assert published.run("report", str(report), "--from", "999999")[0] == ExitCode.USAGE
    # An authority that is away costs the stamp and nothing else; without its certificate nobody is asked.
    away = {"KVLEDGER_TSA_URL": tsa.url, "KVLEDGER_TSA_CERTIFICATE": str(pem)}
    code, _, error = published.run(*judging, env=away)
    assert (code, "no time stamp" in error) == (0, True)
    assert published.run(*judging, env={"KVLEDGER_TSA_URL": tsa.url})[0] == 78
