"""Verifies a bundle offline, from the file and one public key, and recomputes its verdict. Pure."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from auditor.anchoring import Anchor, Anchoring, WitnessPolicy, appraise, make_policy
from auditor.checkpoint import parse_note
from auditor.evidence import Evidence
from auditor.finding import Verdict
from auditor.line import BUNDLE, read_lines
from auditor.main_log import log_keys
from auditor.proof import BundleError, StampStated, Statement, open_statement, unseal
from auditor.record import UnreadableRecord, WithheldPartError, assemble
from auditor.registry import REGISTRY_KINDS, ControlFold, Ignored
from auditor.segment import LogWatch, Partition, raw_leaf, record_leaf
from auditor.statement import make_predicate, same_told
from auditor.verdict import UNANCHORED, judge
from events.chain import sha256
from events.errors import KvledgerError
from events.ids import KeyId, Role, StreamKey
from events.model.audit import PartitionPosition, Segment
from events.model.control import ControlHeader
from events.model.field import MAX_IDS_PER_EVENT
from events.signing import key_id, verify
from events.topic import CONTROL, EVENTS

GARBLED = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Verified:
    """A bundle that holds. `signer` is the auditor's key id; `anchor` says whose key vouched for it; `checked`
    is the checkpoint that the evidence was checked against, None if it carries none; `by_digest` is how many
    records it shows by digests alone, which concern nobody in scope by the auditor's word; `stamp` is what the
    statement says of the checkpoint's time stamp, which isn't checked here."""

    verdict: Verdict
    signer: str
    anchor: str
    payload: bytes
    checked: Anchor | None
    anchoring: Anchoring
    by_digest: int
    stamp: StampStated | None

    def notes(self) -> tuple[str, ...]:
        """What else a reader should know of the check."""
        if not self.by_digest:
            return ()
        word = "the auditor's word says that nobody in scope is concerned"
        what = "1 record is" if self.by_digest == 1 else f"{self.by_digest} records are"
        return (f"{what} shown by digests alone; {word}",)

    def witnessed(self, policy: WitnessPolicy) -> int:
        """How many of the reader's own witnesses have cosigned the whole log that the verdict rests on."""
        if self.checked is None or not self.anchoring.checkpoint or self.anchoring.problems:
            return 0
        return policy.count(self.checked.note)


def verify_bundle(raw: bytes, trusted_key: bytes) -> Verified:
    """Checks envelope, hashes, chains and signatures, and that the evidence gives the very verdict stated.

    `trusted_key` is the operator's or the auditor's public key. Raises BundleError, and nothing else, for
    whatever isn't such a bundle.
    """
    first, newline, body = raw.partition(b"\n")
    if not newline:
        raise BundleError("the file holds no evidence")
    signer, payload, signature = unseal(first)
    try:
        return _verify(body, signer, payload, signature, trusted_key)
    except BundleError:
        raise
    except WithheldPartError as error:
        raise BundleError(f"left out: {error}") from error
    except (*GARBLED, KvledgerError) as error:
        raise BundleError(f"the evidence is garbled ({type(error).__name__})") from error


def _verify(body: bytes, signer: str, payload: bytes, signature: bytes, trusted_key: bytes) -> Verified:
    lines = read_lines(body, BUNDLE)
    registry = _control([line for line in lines if line["t"] == "control"])
    key, vouched = auditor_key(registry, KeyId(signer), trusted_key)
    if key_id(key) != signer:
        raise BundleError("the envelope names another key")
    statement = open_statement(payload, signature, key)
    if statement.subject[1].digest.sha256 != sha256(body):
        raise BundleError("the evidence is not the one that was signed")
    stated = statement.predicate.verdict
    _check_frame(registry, statement, lines)
    evidence = _evidence(registry, stated, lines)
    checked = read_anchor(registry, lines)
    anchoring = UNANCHORED if checked is None else _anchoring(checked, registry, evidence, stated, lines)
    found = judge(evidence, stated.frontier, anchoring=anchoring)
    if found != stated:
        raise BundleError(
            f"the evidence gives {found.kind}, the statement says {stated.kind} or gives other reasons"
        )
    if not same_told(make_predicate(found, evidence, checked), statement.predicate):
        raise BundleError("the statement says something about the log that the evidence doesn't give")
    stated_checkpoint = statement.predicate.checkpoint
    stamp = None if stated_checkpoint is None else stated_checkpoint.stamp
    return Verified(found, signer, vouched, payload, checked, anchoring, sum(map(_by_digest, lines)), stamp)


def _control(lines: list[dict[str, Any]]) -> ControlFold:
    registry = ControlFold(verify)
    last = -1
    for line in lines:
        offset = int(line["o"])
        if offset <= last:
            raise BundleError("the control records are out of order")
        last = offset
        if "d" in line:
            first, second, third = (bytes.fromhex(digest) for digest in line["d"])
            note = line.get("i")
            ignored = None
            if note is not None:
                ignored = Ignored(offset, str(note["why"]), bool(note["broken"]), bool(note["unread"]))
            registry.feed_sealed(offset, (first, second, third), ignored)
            continue
        head = str(line["h"]).encode()
        signature = optional_bytes(line["s"])
        if "b" in line:
            registry.feed(offset, head + b"\n" + str(line["b"]).encode(), signature)
            continue
        header = ControlHeader.model_validate_json(head)
        if header.kind in REGISTRY_KINDS:
            raise BundleError(f"the body of a {header.kind} record is withheld")
        why = str(line["i"]["why"]) if "i" in line else ""
        registry.feed_withheld(offset, header, head, signature, why)
    return registry


def auditor_key(registry: ControlFold, signer: KeyId, trusted_key: bytes) -> tuple[bytes, str]:
    """The auditor's public key as the trusted key vouches for it, and whose key that is."""
    if trusted_key == registry.operator_key:
        grant = registry.grants.get(signer)
        if grant is None or Role.AUDITOR not in grant.roles or grant.revoked_at is not None:
            raise BundleError("the operator granted the signer no auditor's role")
        return grant.public_key, "operator"
    if key_id(trusted_key) != signer:
        raise BundleError("the bundle belongs to another log or was signed by another key")
    grant = registry.grants.get(signer)
    if registry.log and (grant is None or Role.AUDITOR not in grant.roles):
        raise BundleError("this key has no auditor's role in the bundle's log")
    return trusted_key, "auditor"


def _check_frame(registry: ControlFold, statement: Statement, lines: list[dict[str, Any]]) -> None:
    """That statement and evidence speak of one log, one request and one frontier."""
    stated = statement.predicate.verdict
    request = registry.requests.get(stated.request)
    if request is None or request.record_sha256 != statement.subject[0].digest.sha256:
        raise BundleError(f"the evidence holds no request {stated.request} as stated")
    if registry.log != statement.predicate.log or registry.hash.hex() != stated.control_hash:
        raise BundleError("the evidence is of another control log than the statement")
    ends = {(one.topic, one.partition): one.offset for one in stated.frontier}
    registry.reach(ends.get((CONTROL.name, 0), 0))
    if ends.get((CONTROL.name, 0)) != registry.next_offset:
        raise BundleError("the control records don't reach the frontier")
    for line in lines:
        if line["t"] in ("event", "unreadable", "stranger", "leaf"):
            where = PartitionPosition(topic=EVENTS.name, partition=line["p"], offset=line["o"])
            if where.offset >= ends.get((where.topic, where.partition), 0):
                raise BundleError("a record lies behind the frontier")


def _evidence(registry: ControlFold, stated: Verdict, lines: list[dict[str, Any]]) -> Evidence:
    keys = {str(x["domain"]): bytes.fromhex(x["alias_key"]) for x in lines if x["t"] == "key"}
    evidence = Evidence(registry.requests[stated.request], registry, keys, verify)
    form = lines[0]
    if form["version"] != 1 or form["request"] != stated.request:
        raise BundleError("the evidence has an unknown format")
    evidence.partition_starts = {int(p): int(offset) for p, offset in form["starts"].items()}
    scope = evidence.scope
    last: dict[int, int] = {}
    for line in lines:
        kind = line["t"]
        if kind == "bound":
            scope.bound = (scope.bound or frozenset()) | _ids(line["ids"])
        if kind == "subjects":
            scope.cut, scope.missing = scope.cut + line["cut"], scope.missing + line["missing"]
        if kind in ("format", "key", "bound", "subjects", "control", "anchor", "segment"):
            continue
        partition, offset = int(line["p"]), int(line["o"])
        if offset <= last.get(partition, -1):
            raise BundleError("the event records are out of order")
        last[partition] = offset
        if kind == "event":
            bodies = {int(index): str(body).encode() for index, body in line["b"].items()}
            head = str(line["h"]).encode()
            evidence.feed(
                assemble(
                    partition, offset, head, optional_bytes(line["s"]), bodies, evidence.wanted, whole=False
                )
            )
        elif kind == "unreadable":
            stream, digest = _stream(line["stream"]), bytes.fromhex(line["x"])
            evidence.feed(
                UnreadableRecord(partition, offset, stream, int(line["seq"]), digest, str(line["reason"]))
            )
        elif kind == "stranger":
            evidence.note_stranger(_stream(line["stream"]), offset)
    return evidence


def _ids(packed: str) -> frozenset[bytes]:
    raw = base64.b64decode(packed, validate=True)
    if len(raw) % 16 or len(packed) > MAX_IDS_PER_EVENT * 22:
        raise BundleError("the leaves are no whole number of ids, or too many in one line")
    return frozenset(raw[at : at + 16] for at in range(0, len(raw), 16))


def _by_digest(line: dict[str, Any]) -> bool:
    return "d" in line if line["t"] == "control" else line["t"] in ("unreadable", "stranger", "leaf")


def read_anchor(registry: ControlFold, lines: list[dict[str, Any]]) -> Anchor | None:
    """The checkpoint that the evidence carries, its signature and its segments' place in the tree checked."""
    stated = [line for line in lines if line["t"] == "anchor"]
    shown = [line for line in lines if line["t"] == "segment"]
    if not stated and not shown:
        return None
    (line,) = stated
    segments = {
        int(one["i"]): Segment.model_validate_json(
            json.dumps({name: value for name, value in one.items() if name not in ("t", "i")})
        )
        for one in shown
    }
    anchor = Anchor(
        parse_note(str(line["note"]).encode()),
        make_policy([str(key) for key in line["witnesses"]], int(line["quorum"])),
        segments,
        tuple(bytes.fromhex(one) for one in line["hashes"]),
        tuple(str(one) for one in line["said"]),
        optional_bytes(line.get("stamp")) or b"",
    )
    if len(segments) != len(shown) or not anchor.holds(registry.log):
        raise BundleError("the segments are not those of the checkpoint")
    if not any(anchor.note.signed_by(key) for key in log_keys(registry, revoked=False)):
        raise BundleError("no auditor of this log has signed the checkpoint")
    return anchor


def _anchoring(
    anchor: Anchor, registry: ControlFold, evidence: Evidence, stated: Verdict, lines: list[dict[str, Any]]
) -> Anchoring:
    """Computes every segment's root again from the records that are shown."""
    starts: dict[Partition, int] = {(EVENTS.name, p): start for p, start in evidence.partition_starts.items()}
    starts[CONTROL.name, 0] = registry.start or 0
    ordered = [anchor.segments[index] for index in sorted(anchor.segments)]
    watch = LogWatch(ordered, starts)
    for line in lines:
        if line["t"] == "control":
            watch.take((CONTROL.name, 0), int(line["o"]), _control_leaf(line))
        elif line["t"] in ("event", "unreadable", "stranger", "leaf"):
            leaf = _event_leaf(line) if line["t"] == "event" else bytes.fromhex(line["l"])
            watch.take((EVENTS.name, int(line["p"])), int(line["o"]), leaf)
    return appraise(anchor, watch.settle({(one.topic, one.partition): one.offset for one in stated.frontier}))


def _control_leaf(line: dict[str, Any]) -> bytes:
    offset = int(line["o"])
    if "d" in line:
        first, second, third = (bytes.fromhex(digest) for digest in line["d"])
        return record_leaf(offset, first, second, third)
    head, signature = str(line["h"]).encode(), optional_bytes(line["s"])
    if "b" in line:
        return raw_leaf(offset, head + b"\n" + str(line["b"]).encode(), signature)
    body_sha256 = ControlHeader.model_validate_json(head).body_sha256
    return record_leaf(offset, sha256(head), body_sha256, sha256(signature or b""))


def _event_leaf(line: dict[str, Any]) -> bytes:
    offset = int(line["o"])
    head, signature = str(line["h"]).encode(), optional_bytes(line["s"])
    if len(line["b"]) < len(json.loads(head)["parts"]):
        return record_leaf(offset, sha256(head), bytes.fromhex(line["r"]), sha256(signature or b""))
    bodies = [str(line["b"][str(index)]).encode() for index in range(len(line["b"]))]
    return raw_leaf(offset, b"\n".join([head, *bodies]), signature)


def _stream(value: list[Any]) -> StreamKey:
    worker, rank, epoch = value
    return StreamKey(str(worker), int(rank), str(epoch))


def optional_bytes(value: str | None) -> bytes | None:
    """Base64, or nothing where a record has no signature."""
    return None if value is None else base64.b64decode(value, validate=True)
