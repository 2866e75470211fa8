"""Segments, the main log and the anchoring line: what was sealed can't be changed without a verdict saying so."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from auditor.anchoring import Anchoring, PolicyError, WitnessPolicy, appraise, make_anchor, make_policy
from auditor.bundle import make_bundle, shown_record
from auditor.checkpoint import KeyKind, Note, NoteKey, cosign, parse_head, parse_note
from auditor.main_log import MainLog, origin, split
from auditor.proof import BundleError, seal, unseal
from auditor.segment import LogWatch, Settled, raw_leaf
from auditor.tree import Tree, leaf_hash, subset_ranges, subset_root, verify_consistency
from auditor.verdict import judge
from auditor.verify import verify_bundle
from events.chain import sha256
from events.codec import dump
from events.ids import Role, VerdictKind, VerdictReason
from events.kafka.connection import RawRecord
from events.model.audit import AuditRecord, AuditStatement, CheckpointSigned, Segment
from events.model.control import Granted, Revoked
from events.signing import Signer
from tests.support.bundle import AUDITOR, OPERATOR, bundle, first_says, second_says
from tests.support.deletion_case import Fleet, reasons

WITNESSES = [Signer.from_seed(sha256(f"witness {n}".encode())) for n in range(3)]
KEYS = [NoteKey(f"w{n}.example", one.public_key, KeyKind.COSIGNATURE) for n, one in enumerate(WITNESSES)]


def audit_record(statement: AuditStatement, signer: Signer = AUDITOR) -> bytes:
    raw = dump(statement)
    return dump(AuditRecord(signer=signer.id, signature=signer.sign(raw), statement=raw))


class Anchored:
    """A fleet's log with a main log beside it; `seal` is what `audit checkpoint` does, in memory."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.audit: list[bytes] = []
        self.changed: dict[tuple[str, int, int], bytes] = {}
        self.policy = WitnessPolicy()

    def say(self, statement: AuditStatement) -> None:
        self.audit.append(audit_record(statement))

    def main(self) -> MainLog:
        log = MainLog(self.fleet.log.evidence(self.fleet.request).registry)
        for value in self.audit:
            log.take(value)
        return log

    def raw(self) -> list[RawRecord]:
        log = self.fleet.log
        control = [("kv.control", 0, o, v, s) for o, (v, s) in enumerate(log.control.records)]
        events = [
            ("kv.events", p, o, e.value, e.signature)
            for p, records in sorted(log.events.items())
            for o, e in enumerate(records)
            if o >= log.starts.get(p, 0)
        ]
        return [
            RawRecord(t, p, o, None, self.changed.get((t, p, o), v), s, 0)
            for t, p, o, v, s in control + events
        ]

    def starts(self) -> dict[tuple[str, int], int]:
        return {("kv.events", p): start for p, start in self.fleet.log.starts.items()}

    def settle(self) -> Settled:
        watch = LogWatch(self.main().segments, self.starts())
        for one in self.raw():
            watch.take((one.topic, one.partition), one.offset, raw_leaf(one.offset, one.value, one.signature))
        ends = {(one.topic, one.partition): one.offset for one in self.fleet.log.frontier()}
        return watch.settle(ends)

    def seal(self, *witnesses: int) -> None:
        for statement in split(self.settle().new, self.main().size, "log-test", 2):
            self.say(statement)
        note = self.main().sign_head(AUDITOR)
        given = [cosign(note.text, KEYS[n], WITNESSES[n], 1_700_000_000) for n in witnesses]
        self.say(CheckpointSigned(log="log-test", note=note.with_signatures(given).to_bytes().decode()))

    def bundle(self) -> bytes:
        main = self.main()
        head = main.head()
        assert head is not None
        anchor = make_anchor(main, head, self.policy, self.starts())
        log = self.fleet.log
        evidence = log.evidence(self.fleet.request)
        verdict = judge(evidence, log.frontier(), anchoring=appraise(anchor, self.settle()))
        control = [one for one in self.raw() if one.topic == "kv.control"]
        events = [one for one in self.raw() if one.topic == "kv.events"]
        made = make_bundle(
            verdict,
            evidence,
            control,
            [shown_record(one, evidence, anchored=True) for one in events],
            AUDITOR,
            anchor,
        )
        assert first_says(made, OPERATOR.public_key) == second_says(made, OPERATOR.public_key) == verdict.kind
        return made


@pytest.fixture
def anchored() -> Anchored:
    made = Anchored()
    made.seal()
    made.fleet.finish()
    made.seal()
    return made


def line(made: bytes) -> str:
    (found,) = [
        one
        for one in verify_bundle(made, OPERATOR.public_key).verdict.assumptions
        if one.startswith("anchoring")
    ]
    return found


def test_an_anchored_bundle_is_proven_and_says_so(anchored: Anchored) -> None:
    verified = verify_bundle(anchored.bundle(), OPERATOR.public_key)
    assert verified.verdict.kind is VerdictKind.PROVEN
    assert "anchoring: checkpoint" in verified.verdict.assumptions
    assert verified.checked is not None
    assert parse_head(verified.checked.note.text).size == anchored.main().size > 3


def test_cosignatures_of_listed_witnesses_count_once_each(anchored: Anchored) -> None:
    anchored.policy = make_policy([str(key) for key in KEYS], 2)
    anchored.seal(0)
    made = anchored.bundle()
    assert line(made) == "anchoring: witnessed 1 of 3"
    verdict = verify_bundle(made, OPERATOR.public_key).verdict
    assert (verdict.kind, reasons(verdict)) == (
        VerdictKind.UNPROVABLE,
        {VerdictReason.WITNESS_QUORUM_MISSING},
    )
    anchored.seal(0, 2)
    made = anchored.bundle()
    assert line(made) == "anchoring: witnessed 2 of 3"
    assert verify_bundle(made, OPERATOR.public_key).verdict.kind is VerdictKind.PROVEN


def test_records_behind_the_checkpoint_are_not_anchored(anchored: Anchored) -> None:
    anchored.fleet.a.store("umbrella", 50)
    assert "not sealed yet" in line(anchored.bundle())
    anchored.seal()
    assert line(anchored.bundle()) == "anchoring: checkpoint"


def test_witnesses_of_a_checkpoint_that_does_not_cover_all_do_not_count(anchored: Anchored) -> None:
    anchored.policy = make_policy([str(key) for key in KEYS], 1)
    anchored.seal(0, 1, 2)
    assert line(anchored.bundle()) == "anchoring: witnessed 3 of 3"
    anchored.fleet.a.store("umbrella", 50)
    verdict = verify_bundle(anchored.bundle(), OPERATOR.public_key).verdict
    assert (verdict.kind, reasons(verdict)) == (
        VerdictKind.UNPROVABLE,
        {VerdictReason.WITNESS_QUORUM_MISSING},
    )


def test_a_record_that_was_changed_after_it_was_sealed_is_named(anchored: Anchored) -> None:
    hook = anchored.fleet.a
    records = anchored.fleet.log.events[hook.partition]
    where = next(i for i, one in enumerate(records) if b"umbrella" not in one.value and i > 0)
    records[where] = replace(records[where], signature=b"x" * 64)
    verdict = verify_bundle(anchored.bundle(), OPERATOR.public_key).verdict
    assert VerdictReason.CHECKPOINT_UNVERIFIED in reasons(verdict)
    assert verdict.kind is VerdictKind.UNPROVABLE


def test_a_log_that_was_cut_and_written_on_is_named(anchored: Anchored) -> None:
    hook = anchored.fleet.a
    del anchored.fleet.log.events[hook.partition][-1]
    verdict = verify_bundle(anchored.bundle(), OPERATOR.public_key).verdict
    assert VerdictReason.CHECKPOINT_UNVERIFIED in reasons(verdict)
    hook.seq -= 1
    hook.store("umbrella", 70)
    verdict = verify_bundle(anchored.bundle(), OPERATOR.public_key).verdict
    assert VerdictReason.CHECKPOINT_UNVERIFIED in reasons(verdict)
    assert verdict.kind is not VerdictKind.PROVEN


def test_what_retention_took_is_no_contradiction_and_no_anchor(anchored: Anchored) -> None:
    log, hook = anchored.fleet.log, anchored.fleet.a
    first = next(
        one for one in anchored.main().segments if (one.topic, one.partition) == ("kv.events", hook.partition)
    )
    log.starts[hook.partition] = 1
    assert first.next > 1
    settled = anchored.settle()
    assert settled.problems == []
    assert "start is gone" in line(anchored.bundle())
    log.starts[hook.partition] = first.next
    assert line(anchored.bundle()) == "anchoring: checkpoint"


def test_an_auditor_who_shows_other_segments_or_hides_a_record_is_caught(anchored: Anchored) -> None:
    made = anchored.bundle()

    def resigned(body_lines: list[bytes]) -> bytes:
        body = b"\n".join(body_lines)
        _, payload, _ = unseal(made.split(b"\n")[0])
        statement = json.loads(payload)
        statement["subject"][1]["digest"]["sha256"] = sha256(body).hex()
        return seal(json.dumps(statement).encode(), AUDITOR) + b"\n" + body

    lines = made.split(b"\n")[1:]
    verify_bundle(resigned(lines), OPERATOR.public_key)
    for mark in (b'"t":"segment"', b'"t":"anchor"', b'"t":"event"'):
        at = max(i for i, one in enumerate(lines) if mark in one)
        with pytest.raises(BundleError):
            verify_bundle(resigned(lines[:at] + lines[at + 1 :]), OPERATOR.public_key)
        assert second_says(resigned(lines[:at] + lines[at + 1 :]), OPERATOR.public_key) == "invalid"
    at = next(i for i, one in enumerate(lines) if b'"t":"segment"' in one)
    document = json.loads(lines[at]) | {"root": "00" * 32}
    with pytest.raises(BundleError, match="segments"):
        verify_bundle(
            resigned([*lines[:at], json.dumps(document).encode(), *lines[at + 1 :]]), OPERATOR.public_key
        )
    at = next(i for i, one in enumerate(lines) if b'"t":"anchor"' in one)
    document = json.loads(lines[at])
    note = parse_note(document["note"].encode())
    stranger = Signer.from_seed(bytes(32))
    forged = replace(anchored.main()).sign_head(stranger)
    assert forged.text == note.text
    document["note"] = forged.to_bytes().decode()
    with pytest.raises(BundleError, match="signed the checkpoint"):
        verify_bundle(
            resigned([*lines[:at], json.dumps(document).encode(), *lines[at + 1 :]]), OPERATOR.public_key
        )


def test_a_segment_that_is_left_out_leaves_its_records_without_an_anchor(anchored: Anchored) -> None:
    """Its hash may stand for it, but then nothing of its records is shown to be what was sealed."""
    main = anchored.main()
    head = main.head()
    assert head is not None
    whole = make_anchor(main, head, anchored.policy, {})
    for left_out in whole.segments:
        shown = {index: one for index, one in whole.segments.items() if index != left_out}
        ranges = subset_ranges(sorted(shown), main.size)
        anchor = replace(whole, segments=shown, hashes=tuple(Tree(ranges).extend(main.leaves).proof(ranges)))
        assert anchor.holds("log-test")
        watch = LogWatch(shown.values(), {})
        for one in anchored.raw():
            leaf = raw_leaf(one.offset, one.value, one.signature)
            watch.take((one.topic, one.partition), one.offset, leaf)
        ends = {(one.topic, one.partition): one.offset for one in anchored.fleet.log.frontier()}
        found = appraise(anchor, watch.settle(ends))
        assert not found.checkpoint
        assert "in no segment" in found.gap or "not sealed yet" in found.gap
        log = anchored.fleet.log
        made = bundle(log, anchored.fleet.request, anchor=anchor, anchoring=found)
        assert first_says(made, OPERATOR.public_key) == second_says(made, OPERATOR.public_key) == "PROVEN"
        assert found.line in verify_bundle(made, OPERATOR.public_key).verdict.assumptions


def test_no_other_tenant_is_in_an_anchored_bundle(anchored: Anchored) -> None:
    made = anchored.bundle()
    assert b"umbrella" not in made + unseal(made.split(b"\n")[0])[1]


def test_of_two_auditors_who_extend_at_the_same_time_one_wins() -> None:
    made = Anchored()
    first, second = split(made.settle().new, 0, "log-test", 2)[:2]
    assert made.main().take(audit_record(first))
    log = made.main()
    assert log.take(audit_record(first))
    assert not log.take(audit_record(first))
    assert not log.take(audit_record(second.model_copy(update={"first_leaf": 7})))
    assert log.take(audit_record(second))
    assert log.size == len(first.segments) + len(second.segments)


def test_only_auditors_of_this_log_extend_it() -> None:
    made = Anchored()
    (statement, *_) = split(made.settle().new, 0, "log-test", 9)
    control = made.fleet.log.control.signers[Role.CONTROL]
    for value in (
        audit_record(statement, control),
        audit_record(statement, Signer.from_seed(bytes(32))),
        audit_record(statement.model_copy(update={"log": "other"})),
        audit_record(statement).replace(b'"signature":"', b'"signature":"00')[:-2],
        b"garbage",
    ):
        assert not made.main().take(value)
    gap = statement.segments[0].model_copy(update={"next": 0})
    many = statement.segments[0].model_copy(update={"records": 10_000})
    for bad in (gap, many):
        assert not made.main().take(audit_record(statement.model_copy(update={"segments": (bad,)})))


def test_what_a_revoked_auditor_sealed_stays_and_the_next_one_signs_the_head(anchored: Anchored) -> None:
    control = anchored.fleet.log.control
    heir = Signer.from_seed(sha256(b"the next auditor"))
    size = anchored.main().size
    control.append(Granted(public_key=heir.public_key, roles=(Role.AUDITOR,), label="next"), Role.OPERATOR)
    control.append(Revoked(public_key=AUDITOR.public_key), Role.OPERATOR)
    assert anchored.main().size == size
    assert anchored.main().head() is None
    note = anchored.main().sign_head(heir)
    anchored.audit.append(audit_record(CheckpointSigned(log="log-test", note=note.to_bytes().decode()), heir))
    head = anchored.main().head()
    assert head is not None
    assert head.signed_by(NoteKey(origin("log-test"), heir.public_key))
    assert head.signed_by(NoteKey(origin("log-test"), AUDITOR.public_key))


def test_heads_are_consistent_and_a_checkpoint_over_another_tree_is_a_problem(anchored: Anchored) -> None:
    main = anchored.main()
    for old in sorted(main.roots):
        assert verify_consistency(
            old, main.size, main.consistency(old), main.roots[old], main.roots[main.size]
        )
    other = Anchored()
    other.fleet.a.store("acme", 99)
    other.seal()
    foreign = other.main().head()
    assert foreign is not None
    assert not main.take(audit_record(CheckpointSigned(log="log-test", note=foreign.to_bytes().decode())))
    assert len(main.problems) == 1
    for garbage in ("", "no note", foreign.to_bytes().decode().replace("kvledger", "kvledgex")):
        assert not main.take(audit_record(CheckpointSigned(log="log-test", note=garbage)))
    assert len(main.problems) == 1
    anchored.audit.append(audit_record(CheckpointSigned(log="log-test", note=foreign.to_bytes().decode())))
    verdict = verify_bundle(anchored.bundle(), OPERATOR.public_key).verdict
    assert reasons(verdict) == {VerdictReason.CHECKPOINT_UNVERIFIED}


def test_a_policy_takes_witness_keys_only() -> None:
    keys = [str(key) for key in KEYS]
    assert make_policy(keys, 2).quorum == 2
    plain = str(NoteKey("w", WITNESSES[0].public_key))
    same = str(NoteKey("other-name", WITNESSES[0].public_key, KeyKind.COSIGNATURE))
    for bad, quorum in ((["garbage"], 0), ([plain], 1), (keys, 4), (keys, -1), ([*keys, same], 1)):
        with pytest.raises(PolicyError):
            make_policy(bad, quorum)
    assert WitnessPolicy(tuple(KEYS), 1).count(Note("text\n")) == 0


@pytest.mark.parametrize(
    ("anchoring", "text"),
    [
        (Anchoring(), "anchoring: none"),
        (Anchoring(checkpoint=True), "anchoring: checkpoint"),
        (Anchoring(checkpoint=True, witnessed=2, witnesses=3), "anchoring: witnessed 2 of 3"),
        (Anchoring(gap="why", witnesses=3), "anchoring: none (why)"),
        (
            Anchoring(checkpoint=True, problems=("p",)),
            "anchoring: none (the log contradicts its checkpoint)",
        ),
    ],
)
def test_the_line_says_what_there_is(anchoring: Anchoring, text: str) -> None:
    assert anchoring.line == text


def test_any_subset_of_leaves_leads_to_the_root() -> None:
    leaves = [leaf_hash(b"%d" % n) for n in range(13)]
    for mask in range(1, 1 << 13, 37):
        shown = [n for n in range(13) if mask >> n & 1]
        ranges = subset_ranges(shown, 13)
        tree = Tree(ranges).extend(leaves)
        given, hashes = {n: leaves[n] for n in shown}, tree.proof(ranges)
        assert subset_root(given, 13, hashes) == tree.root()
        assert subset_root(given | {shown[0]: bytes(32)}, 13, hashes) != tree.root()
        assert subset_root(given, 13, [*hashes, bytes(32)]) is None
    assert subset_root({}, 3, []) is None
    assert subset_root({5: bytes(32)}, 3, []) is None


def test_the_main_logs_name_fits_into_a_note() -> None:
    assert origin("log+1") == "kvledger.audit/log%2B1"


def test_a_segment_is_closed_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditor.segment.SEGMENT_RECORDS", 4)
    watch = LogWatch([], {})
    for offset in range(10):
        watch.take(("kv.events", 0), offset, leaf_hash(b"%d" % offset))
    made = watch.settle({("kv.events", 0): 12})
    assert [(one.first, one.next, one.records) for one in made.new] == [(0, 4, 4), (4, 8, 4), (8, 12, 2)]
    assert isinstance(made.new[0], Segment)
