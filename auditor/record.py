"""One record of `kv.events` as the auditor sees it: header, part 0 and the parts in scope, nothing else.

A live read and an offline bundle give the same view, so both lead to the same verdict. A foreign part is
never decoded: it cannot speak of this scope's copies, and a bundle doesn't hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from events.chain import sha256
from events.codec import BatchDecodeError, decode_header
from events.errors import KvledgerError
from events.ids import StreamKey
from events.model.batch import Header
from events.model.part import DomainEvent, DomainPart, StreamEvent, StreamPart
from events.topic import MAX_RECORD_BYTES

_NO_EVENTS = b'{"events":[]}'
_NO_EVENTS_SHA256 = sha256(_NO_EVENTS)
"""Part 0 of most records."""

Wanted = Callable[[Header], Container[bytes] | None]
"""Header -> the aliases whose parts are in scope; None for «every part»."""


class WithheldPartError(KvledgerError):
    """A part that is in scope, or part 0, was not shown; whoever gave this evidence left it out."""

    def __init__(self, stream: StreamKey, seq: int, part: int) -> None:
        super().__init__(f"part {part} of record {seq} of {stream} is missing")
        self.stream = stream
        self.seq = seq
        self.part = part


@dataclass(slots=True)
class StreamRecord:
    """`parts` holds in-scope parts only, by alias; `header.parts` names every part of the record. `kinds` are the
    classes of all events that it holds: a rule that speaks of some of them needs to look at no other record. Nobody
    changes one (freezing it would make its making dear)."""

    partition: int
    offset: int
    header: Header
    header_line: bytes
    header_sha256: bytes
    signature: bytes | None
    stream_events: tuple[StreamEvent, ...]
    parts: Mapping[bytes, tuple[DomainEvent, ...]]
    stream: StreamKey
    kinds: frozenset[type] = field(init=False)

    def __post_init__(self) -> None:
        kinds: set[type] = set(map(type, self.stream_events))
        for events in self.parts.values():
            kinds.update(map(type, events))
        self.kinds = frozenset(kinds)

    def all_events(self) -> Iterator[tuple[StreamEvent | DomainEvent, ...]]:
        """Part 0's, then those of each part in scope."""
        yield self.stream_events
        yield from self.parts.values()


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """`stream` and `seq` are None where not even those could be read: then no stream is concerned."""

    partition: int
    offset: int
    stream: StreamKey | None
    seq: int | None
    header_sha256: bytes
    reason: str


def read_record(
    partition: int,
    offset: int,
    value: bytes,
    signature: bytes | None,
    wanted: Wanted,
    header_sha256: bytes | None = None,
) -> StreamRecord | UnreadableRecord:
    """The view of one raw record, whose header line's SHA-256 may be known already; never raises, whatever the
    bytes."""
    line, *bodies = value.split(b"\n")
    if len(value) > MAX_RECORD_BYTES * 2:
        return UnreadableRecord(partition, offset, None, None, header_sha256 or sha256(line), "oversize")
    shown = dict(enumerate(bodies))
    return assemble(partition, offset, line, signature, shown, wanted, header_sha256=header_sha256)


class Views:
    """One raw record as several requests see it: those that want the same parts share one view."""

    __slots__ = ("_made", "_raw")

    def __init__(
        self, partition: int, offset: int, value: bytes, signature: bytes | None, header_sha256: bytes
    ) -> None:
        self._raw = partition, offset, value, signature, header_sha256
        self._made: dict[frozenset[bytes], StreamRecord] = {}

    def of(self, wanted: Wanted) -> StreamRecord | UnreadableRecord:
        """As `read_record` gives it."""
        partition, offset, value, signature, header_sha256 = self._raw
        for made in self._made.values():
            aliases = wanted(made.header)
            named = (ref.alias for ref in made.header.parts if ref.alias is not None)
            known = self._made.get(frozenset(one for one in named if aliases is None or one in aliases))
            if known is not None:
                return known
            break
        view = read_record(partition, offset, value, signature, wanted, header_sha256)
        if isinstance(view, StreamRecord):
            self._made[frozenset(view.parts)] = view
        return view


def assemble(
    partition: int,
    offset: int,
    header_line: bytes,
    signature: bytes | None,
    bodies: Mapping[int, bytes],
    wanted: Wanted,
    *,
    whole: bool = True,
    header_sha256: bytes | None = None,
) -> StreamRecord | UnreadableRecord:
    """The view from a header line and some of its parts by index.

    With `whole` the bodies are all that the record has, and a wrong number is a fault of the record.
    Without, raises WithheldPartError if part 0 or a part in scope is missing.
    """
    line_sha256 = header_sha256 or sha256(header_line)

    def unreadable(reason: str, stream: StreamKey | None, seq: int | None) -> UnreadableRecord:
        return UnreadableRecord(partition, offset, stream, seq, line_sha256, reason)

    try:
        header = decode_header(header_line)
    except BatchDecodeError as error:
        return unreadable(error.reason, error.stream, error.seq)
    if whole and len(bodies) != len(header.parts):
        return unreadable("part_count", header.stream, header.seq)
    aliases = wanted(header)
    stream_events: tuple[StreamEvent, ...] = ()
    parts: dict[bytes, tuple[DomainEvent, ...]] = {}
    for index, ref in enumerate(header.parts):
        if ref.alias is not None and aliases is not None and ref.alias not in aliases:
            continue
        body = bodies.get(index)
        if body is None:
            raise WithheldPartError(header.stream, header.seq, index)
        empty = body == _NO_EVENTS
        if (_NO_EVENTS_SHA256 if empty else sha256(body)) != ref.sha256:
            return unreadable("part_hash", header.stream, header.seq)
        try:
            if ref.alias is None:
                stream_events = () if empty else StreamPart.read(body).events
                count = len(stream_events)
            else:
                parts[ref.alias] = DomainPart.read(body).events
                count = len(parts[ref.alias])
        except ValidationError:
            return unreadable("malformed", header.stream, header.seq)
        if count != ref.events:
            return unreadable("part_count", header.stream, header.seq)
    return StreamRecord(
        partition, offset, header, header_line, line_sha256, signature, stream_events, parts, header.stream
    )
