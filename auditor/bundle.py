"""A bundle: a signed statement, and below it the evidence that lets anybody recompute its verdict.

One file of JSON lines. Line 1 is the DSSE envelope, which names the SHA-256 of all bytes below. Then
`format`, the `anchor` and its `segment`s if the log has a checkpoint, the alias `key` of each domain in scope,
every `control` record (whole; its body withheld; or sealed, that is by digests only), and of each stream the
header lines with part 0 and the parts in scope. An anchored bundle has a line for every record, so that every
segment's root can be computed again; of what concerns no stream that is the record's leaf hash alone.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from auditor.anchoring import Anchor
from auditor.evidence import Evidence
from auditor.finding import Verdict
from auditor.proof import StampStated, make_statement, seal
from auditor.record import StreamRecord, UnreadableRecord, read_record
from auditor.registry import REGISTRY_KINDS, Ignored
from auditor.segment import raw_leaf
from auditor.statement import make_predicate
from events.chain import sha256, split_lines
from events.codec import decode_control
from events.errors import DecodeError
from events.model.batch import Header
from events.model.control import (
    ControlBody,
    DeletionRequested,
    DomainAdmitted,
    DomainCreated,
    HoldReleased,
    HoldSet,
    LimitSet,
    PolicySet,
    SaltBound,
    TenantScope,
)
from events.model.field import MAX_IDS_PER_EVENT
from events.signing import Signer

if TYPE_CHECKING:
    from events.kafka.connection import RawRecord

FORMAT_VERSION = 1


def shown_record(record: RawRecord, evidence: Evidence, *, anchored: bool) -> bytes:
    """The line that a bundle has of one record of kv.events, with its newline; empty if it has none."""
    line = event_line(record, evidence, anchored=anchored)
    return b"" if line is None else _line(line)


def make_bundle(
    verdict: Verdict,
    evidence: Evidence,
    control: Sequence[RawRecord],
    shown: Iterable[bytes],
    signer: Signer,
    anchor: Anchor | None = None,
    stamp: StampStated | None = None,
    *,
    given_ms: int | None = None,
) -> bytes:
    """The whole file. `stamp` is what the anchor's time stamp says, `given_ms` the auditor's clock at the verdict.

    `control` are raw records up to the verdict's frontier, `shown` what `shown_record` gave for those of kv.events,
    in offset order within each partition; of other tenants neither shows anything."""
    lines = map(_line, _evidence_lines(evidence, control, anchor))
    body = b"".join(chain(lines, shown))
    payload = make_statement(make_predicate(verdict, evidence, anchor, stamp, given_ms), sha256(body))
    return seal(payload, signer) + b"\n" + body


def _line(document: dict[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _evidence_lines(
    evidence: Evidence, control: Sequence[RawRecord], anchor: Anchor | None
) -> Iterator[dict[str, object]]:
    yield {
        "t": "format",
        "version": FORMAT_VERSION,
        "request": evidence.request.number,
        "starts": {str(p): offset for p, offset in sorted(evidence.partition_starts.items())},
    }
    if anchor is not None:
        yield from anchor_lines(anchor)
    scope = evidence.scope
    for domain in sorted(scope.domains & set(scope.alias_keys)):
        yield {"t": "key", "domain": domain, "alias_key": scope.alias_keys[domain].hex()}
    if scope.bound is not None:
        leaves = sorted(scope.bound)
        for at in range(0, max(1, len(leaves)), MAX_IDS_PER_EVENT):
            packed = b"".join(leaves[at : at + MAX_IDS_PER_EVENT])
            yield {"t": "bound", "ids": base64.b64encode(packed).decode()}
        if scope.cut or scope.missing:
            yield {"t": "subjects", "cut": scope.cut, "missing": scope.missing}
    ignored = {one.offset: one for one in evidence.registry.ignored}
    curtain = Curtain(evidence)
    for record in control:
        yield curtain.control_line(record, ignored.get(record.offset))


def anchor_lines(anchor: Anchor) -> Iterator[dict[str, object]]:
    """The checkpoint, whose cosignatures count, and every segment that is shown."""
    yield {
        "t": "anchor",
        "note": anchor.note.to_bytes().decode(),
        "witnesses": [str(key) for key in anchor.policy.keys],
        "quorum": anchor.policy.quorum,
        "hashes": [one.hex() for one in anchor.hashes],
        "said": list(anchor.said),
        **({"stamp": base64.b64encode(anchor.stamp).decode()} if anchor.stamp else {}),
    }
    for index, segment in sorted(anchor.segments.items()):
        yield {"t": "segment", "i": index, **segment.model_dump(mode="json")}


class Curtain:
    """Decides what of kv.control a bundle shows; remembers holds to show their release."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._holds: set[str] = set()

    def control_line(self, record: RawRecord, ignored: Ignored | None) -> dict[str, object]:
        signature = None if record.signature is None else base64.b64encode(record.signature).decode()
        try:
            decoded = decode_control(record.value)
            text = record.value.decode()
        except (DecodeError, UnicodeDecodeError):
            return self._sealed(record, ignored)
        head, _, body = text.partition("\n")
        line: dict[str, object] = {"t": "control", "o": record.offset, "h": head, "s": signature}
        if decoded.body.kind in REGISTRY_KINDS or self._concerns(record.offset, decoded.body):
            return line | {"b": body}
        principal = decoded.header.key_scope
        if principal is not None and principal != self._evidence.request.key_scope:
            return self._sealed(record, ignored)
        if ignored is None or ignored.broken:
            return line
        return line | {"i": {"why": ignored.why, "broken": False, "unread": False}}

    def _sealed(self, record: RawRecord, ignored: Ignored | None) -> dict[str, object]:
        head, rest = split_lines(record.value)
        line: dict[str, object] = {
            "t": "control",
            "o": record.offset,
            "d": [sha256(head).hex(), sha256(rest).hex(), sha256(record.signature or b"").hex()],
        }
        if ignored is not None:
            line["i"] = {"why": ignored.why, "broken": ignored.broken, "unread": ignored.unread}
        return line

    def _concerns(self, offset: int, body: ControlBody) -> bool:
        evidence = self._evidence
        scope, domains = evidence.request.scope, evidence.scope.domains
        tenant = scope.tenant if isinstance(scope, TenantScope) else None
        if evidence.scope.everywhere:
            return True
        match body:
            case DeletionRequested():
                return offset == evidence.request.number
            case DomainCreated():
                return body.domain in domains or body.tenant == tenant
            case DomainAdmitted():
                return body.tenant == tenant
            case HoldSet():
                shown = self._placed(body, tenant)
                if shown:
                    self._holds.add(body.hold)
                return shown
            case HoldReleased():
                shown = body.hold in self._holds
                self._holds.discard(body.hold)  # of that name the next may be another tenant's
                return shown
            case PolicySet():
                return self._placed(body, tenant)
            case SaltBound():
                return body.domain in domains
            case LimitSet():
                return body.tenant == tenant
            case _:
                return False

    def _placed(self, body: HoldSet | PolicySet, tenant: str | None) -> bool:
        """Whether it stands on a domain in scope, or on the tenant."""
        owners = self._evidence.registry.domains
        reached = any(body.covers(domain, owners.get(domain)) for domain in self._evidence.scope.domains)
        return reached or (tenant is not None and body.tenant == tenant)


def event_line(record: RawRecord, evidence: Evidence, *, anchored: bool) -> dict[str, object] | None:
    """What a bundle shows of one record of kv.events; None if it concerns no stream and nothing is `anchored`."""
    where: dict[str, object] = {"p": record.partition, "o": record.offset}
    leaf = {"l": raw_leaf(record.offset, record.value, record.signature).hex()} if anchored else {}
    read = read_record(record.partition, record.offset, record.value, record.signature, evidence.wanted)
    epoch = None if read.stream is None else evidence.registry.epochs.get(read.stream)
    if isinstance(read, StreamRecord) and epoch is None:
        return {"t": "stranger", **where, "stream": list(read.stream), **leaf}
    if epoch is None or (isinstance(read, StreamRecord) and epoch.body.partition != record.partition):
        return {"t": "leaf", **where, **leaf} if anchored else None
    if isinstance(read, UnreadableRecord):
        return where | {
            "t": "unreadable",
            "stream": list(epoch.stream),
            "seq": read.seq,
            "x": read.header_sha256.hex(),
            "reason": read.reason,
            **leaf,
        }
    lines = record.value.split(b"\n")
    shown = wanted_parts(evidence, read.header)
    rest = {"r": sha256(split_lines(record.value)[1]).hex()} if len(shown) < len(lines) - 1 else {}
    return where | {
        "t": "event",
        "h": lines[0].decode(),
        "s": None if record.signature is None else base64.b64encode(record.signature).decode(),
        "b": {str(index): lines[index + 1].decode() for index in shown},
        **(rest if anchored else {}),
    }


def wanted_parts(evidence: Evidence, header: Header) -> list[int]:
    """Indexes of the parts that a bundle shows of a record: part 0 and those in scope."""
    aliases = evidence.wanted(header)
    return [
        index
        for index, ref in enumerate(header.parts)
        if ref.alias is None or aliases is None or ref.alias in aliases
    ]
