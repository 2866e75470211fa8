"""`kv.control` as a report shows it: which bodies, how it is read back, and how it fits the checkpoint. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from auditor.anchoring import Anchor, Anchoring, appraise
from auditor.proof import BundleError
from auditor.registry import ControlFold
from auditor.segment import LogWatch, raw_leaf, record_leaf
from auditor.verify import optional_bytes
from events.chain import sha256
from events.codec import decode_control
from events.errors import DecodeError
from events.model.control import ControlHeader
from events.signing import verify
from events.topic import CONTROL

if TYPE_CHECKING:
    from events.kafka.connection import RawRecord

KEY_KINDS = frozenset({"genesis", "granted", "revoked"})
REQUEST_KIND = "deletion_requested"


@dataclass(frozen=True, slots=True)
class Range:
    """Positions of kv.control from `first` up to, without, `next`."""

    first: int
    next: int

    def __contains__(self, offset: int) -> bool:
        return self.first <= offset < self.next


def _needs_body(kind: str, offset: int, span: Range) -> bool:
    """Whether a record of kv.control is shown with its body: it is a request of the range, or decides whose keys
    count."""
    return kind in KEY_KINDS or (kind == REQUEST_KIND and offset in span)


def control_line(record: RawRecord, span: Range) -> dict[str, Any]:
    """One record of kv.control: header line and signature, its body if that is needed; all bytes of what can't be
    read."""
    signature = None if record.signature is None else base64.b64encode(record.signature).decode()
    line: dict[str, Any] = {"t": "control", "o": record.offset, "s": signature}
    try:
        kind = decode_control(record.value).header.kind
        head, _, body = record.value.decode().partition("\n")
    except (DecodeError, UnicodeDecodeError):
        return line | {"v": base64.b64encode(record.value).decode()}
    line["h"] = head
    return line | {"b": body} if _needs_body(kind, record.offset, span) else line


def fold_shown(lines: Iterable[Mapping[str, Any]], span: Range) -> ControlFold:
    """kv.control from its lines. Raises BundleError if a body is left out that has to be there."""
    registry, last = ControlFold(verify), -1
    for line in lines:
        if line["t"] != "control":
            continue
        offset, signature = int(line["o"]), optional_bytes(line["s"])
        if offset <= last:
            raise BundleError("the control records are out of order")
        last = offset
        if "v" in line:
            registry.feed(offset, base64.b64decode(line["v"], validate=True), signature)
        elif "b" in line:
            registry.feed(offset, f"{line['h']}\n{line['b']}".encode(), signature)
        else:
            head = str(line["h"]).encode()
            header = ControlHeader.model_validate_json(head)
            if _needs_body(header.kind, offset, span):
                raise BundleError(f"the body of the {header.kind} record {offset} is left out")
            registry.feed_withheld(offset, header, head, signature)
    return registry


def requests_in(registry: ControlFold, span: Range) -> list[int]:
    """Numbers of the range's requests, in their order."""
    return sorted(number for number in registry.requests if number in span)


def anchoring_of(anchor: Anchor, registry: ControlFold, lines: Iterable[Mapping[str, Any]]) -> Anchoring:
    """How kv.control, as shown, fits the segments of it that the checkpoint commits to."""
    ordered = [anchor.segments[index] for index in sorted(anchor.segments)]
    watch = LogWatch(ordered, {(CONTROL.name, 0): registry.start or 0})
    for line in lines:
        if line["t"] == "control":
            watch.take((CONTROL.name, 0), int(line["o"]), _leaf(line))
    return appraise(anchor, watch.settle({(CONTROL.name, 0): registry.next_offset}))


def _leaf(line: Mapping[str, Any]) -> bytes:
    offset, signature = int(line["o"]), optional_bytes(line["s"])
    if "v" in line:
        return raw_leaf(offset, base64.b64decode(line["v"], validate=True), signature)
    head = str(line["h"]).encode()
    if "b" in line:
        return raw_leaf(offset, head + b"\n" + str(line["b"]).encode(), signature)
    rest = ControlHeader.model_validate_json(head).body_sha256
    return record_leaf(offset, sha256(head), rest, sha256(signature or b""))
