"""Bytes <-> records for every topic; strict, never logs, errors carry what could still be read.

`EventBatch` and control records are lines: a header line, then body lines; hashes and signatures are over
those raw lines, so nobody has to canonicalise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from events.chain import sha256, split_lines
from events.errors import DecodeError
from events.ids import Role, StreamKey
from events.model.audit import AccessBatch, AuditRecord, DeadRecord, QuotaState, SubjectBound
from events.model.batch import ControlPosition, DecodedPart, EventBatch, Header, PartRef
from events.model.control import ControlBody, ControlHeader, ControlRecord
from events.model.field import MAX_COUNT, Record
from events.model.part import DomainEvent, DomainPart, StreamEvent, StreamPart
from events.model.signal import Pulse, Signal
from events.topic import MAX_RECORD_BYTES
from events.upcast import CURRENT, upcast

M = TypeVar("M", bound=Record)
_BODY: TypeAdapter[ControlBody] = TypeAdapter(ControlBody)
_SIGNAL: TypeAdapter[Signal] = TypeAdapter(Signal)


class BatchDecodeError(DecodeError):
    """An `EventBatch` that cannot be read. `stream` and `seq` are set when its header still told them:
    then that stream has lost a record; otherwise no stream may change state because of it."""

    def __init__(
        self, reason: str, detail: str = "", *, stream: StreamKey | None = None, seq: int | None = None
    ) -> None:
        super().__init__(reason, detail)
        self.stream = stream
        self.seq = seq


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A record ready to be sent. `header_sha256` is the next record's `prev`; `header_line` is what is signed."""

    value: bytes
    header_line: bytes
    header_sha256: bytes
    seq: int


def _explain(error: ValidationError) -> str:
    """Where and why, without the input: it may be anybody's data."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(str(step) for step in first["loc"])
    return f"{where}: {first['type']}"[:200]


def dump(model: BaseModel) -> bytes:
    """Compact JSON without empty optionals; one line."""
    return model.model_dump_json(exclude_none=True).encode()


def _load(model: type[M], family: str, raw: bytes) -> M:
    try:
        return model.read(raw)
    except ValidationError as error:
        document = _document(raw)
        if document is None:
            raise DecodeError("not_json", f"{len(raw)} bytes") from error
        if document.get("v") == CURRENT[family]:
            raise DecodeError("malformed", _explain(error)) from error
    try:
        return model.model_validate_json(json.dumps(upcast(family, document)))
    except ValidationError as error:
        raise DecodeError("malformed", _explain(error)) from error


def _document(raw: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def encode_batch(
    *,
    worker: str,
    rank: int,
    epoch: str,
    epoch_no: int,
    seq: int,
    prev: bytes,
    control: ControlPosition,
    stream_events: Sequence[StreamEvent],
    parts: Sequence[tuple[bytes, Sequence[DomainEvent]]],
) -> EncodedBatch:
    """One record of `kv.events`; parts in the order given. Raises ValueError above MAX_RECORD_BYTES: split."""
    bodies = [dump(StreamPart(events=tuple(stream_events)))]
    refs = [PartRef(alias=None, sha256=sha256(bodies[0]), events=len(stream_events))]
    for alias, events in parts:
        body = dump(DomainPart(events=tuple(events)))
        bodies.append(body)
        refs.append(PartRef(alias=alias, sha256=sha256(body), events=len(events)))
    header = Header(
        worker=worker,
        rank=rank,
        epoch=epoch,
        epoch_no=epoch_no,
        seq=seq,
        prev=prev,
        control=control,
        parts=tuple(refs),
    )
    line = dump(header)
    value = b"\n".join([line, *bodies])
    if len(value) > MAX_RECORD_BYTES:
        raise ValueError(f"record of {len(value)} bytes is above {MAX_RECORD_BYTES}")
    return EncodedBatch(value, line, sha256(line), seq)


def decode_header(line: bytes) -> Header:
    """The header of a batch alone, for readers that are not shown every part. Raises BatchDecodeError."""
    try:
        header = _load(Header, "event_batch", line)
    except DecodeError as error:
        stream, seq = _peek(line)
        raise BatchDecodeError(error.reason, error.detail, stream=stream, seq=seq) from error
    aliases = [ref.alias for ref in header.parts]
    if aliases[0] is not None or None in aliases[1:] or len(set(aliases)) != len(aliases):
        raise BatchDecodeError(
            "malformed", "parts: part 0 first, each alias once", stream=header.stream, seq=header.seq
        )
    return header


def _peek(line: bytes) -> tuple[StreamKey | None, int | None]:
    document = _document(line) or {}
    worker, rank, epoch, seq = (document.get(name) for name in ("worker", "rank", "epoch", "seq"))
    if (
        isinstance(worker, str)
        and type(rank) is int
        and isinstance(epoch, str)
        and type(seq) is int
        and 0 <= seq <= MAX_COUNT
        and worker
        and epoch
    ):
        return StreamKey(worker, rank, epoch), seq
    return None, None


def decode_batch(value: bytes) -> EventBatch:
    """One record of `kv.events`, its hashes checked.

    Raises BatchDecodeError with a stable reason: oversize, not_json, unknown_version, malformed,
    part_count, part_hash. The indexer dead-letters the record whole; other streams go on.
    """
    if len(value) > MAX_RECORD_BYTES * 2:
        raise BatchDecodeError("oversize", f"{len(value)} bytes")
    lines = value.split(b"\n")
    header = decode_header(lines[0])
    if len(lines) - 1 != len(header.parts):
        raise BatchDecodeError(
            "part_count", f"{len(lines) - 1} for {len(header.parts)}", stream=header.stream, seq=header.seq
        )
    stream_events: tuple[StreamEvent, ...] = ()
    parts: list[DecodedPart] = []
    for ref, body in zip(header.parts, lines[1:], strict=True):
        if sha256(body) != ref.sha256:
            raise BatchDecodeError("part_hash", "", stream=header.stream, seq=header.seq)
        try:
            if ref.alias is None:
                stream_events = StreamPart.read(body).events
                count = len(stream_events)
            else:
                events = DomainPart.read(body).events
                parts.append(DecodedPart(ref.alias, events))
                count = len(events)
        except ValidationError as error:
            raise BatchDecodeError(
                "malformed", _explain(error), stream=header.stream, seq=header.seq
            ) from error
        if count != ref.events:
            raise BatchDecodeError("part_count", "events", stream=header.stream, seq=header.seq)
    return EventBatch(header, sha256(lines[0]), stream_events, tuple(parts))


def encode_control(
    body: ControlBody,
    *,
    log: str,
    signer: str,
    role: Role,
    written_ms: int,
    idempotency_key: str | None = None,
    key_scope: str | None = None,
) -> tuple[bytes, bytes]:
    """(value, header line to sign) of one record of `kv.control`."""
    line = dump(body)
    header = dump(
        ControlHeader(
            kind=body.kind,
            log=log,
            signer=signer,
            role=role,
            body_sha256=sha256(line),
            idempotency_key=idempotency_key,
            key_scope=key_scope,
            written_ms=written_ms,
        )
    )
    return header + b"\n" + line, header


def decode_control(value: bytes) -> ControlRecord:
    """One record of `kv.control`, its body's hash checked, its signature not yet (`events.fold.registry`).

    Raises DecodeError: not_json, unknown_version, malformed, body_hash. Such a record is ignored by every
    fold but still advances the running hash.
    """
    head, rest = split_lines(value)
    header = _load(ControlHeader, "control", head)
    if sha256(rest) != header.body_sha256:
        raise DecodeError("body_hash")
    try:
        body = _BODY.validate_json(rest)
    except ValidationError as error:
        raise DecodeError("malformed", _explain(error)) from error
    if body.kind != header.kind:
        raise DecodeError("malformed", "kind of header and body differ")
    return ControlRecord(header, head, body, sha256(value))


def decode_pulse(value: bytes) -> Pulse:
    """Raises DecodeError; a pulse that can't be read is dropped, its worker grows stale."""
    return _load(Pulse, "pulse", value)


def decode_signal(value: bytes) -> Signal:
    """Raises DecodeError; other readers' garbage is skipped."""
    try:
        return _SIGNAL.validate_json(value)
    except ValidationError as error:
        raise DecodeError("malformed", _explain(error)) from error


def decode_quota(value: bytes) -> QuotaState:
    """Raises DecodeError; the state of that key stays what it was."""
    return _load(QuotaState, "quota", value)


def decode_audit(value: bytes) -> AuditRecord:
    """Raises DecodeError; the signature over `statement` is the caller's to check."""
    return _load(AuditRecord, "audit", value)


def decode_access(value: bytes) -> AccessBatch:
    """Raises DecodeError."""
    return _load(AccessBatch, "access", value)


def decode_subject(value: bytes) -> SubjectBound:
    """Raises DecodeError."""
    return _load(SubjectBound, "subject", value)


def decode_dead(value: bytes) -> DeadRecord:
    """Raises DecodeError."""
    return _load(DeadRecord, "dead", value)
