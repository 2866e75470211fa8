"""A replica's fold states as a stream of lines, and reading them back at another replica.

Each line is a JSON object; bytes are `{"b": hex}`. The first line names format, log, topic, the control log that
was read and the position of each partition; then, stream by stream, its rows, the copies' attributes and the
copies; the last line holds the SHA-256 of all bytes before it, signed by the control key. A stream's state may be
newer than the positions: what is read again then is a redelivery.

One stream's tables are copied at a time, so the sender's memory grows by its largest stream.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

from events.errors import KvledgerError
from events.fold.registry import Registry
from events.fold.state import Copy, CopyAttributes, HolderGroup, StreamState
from events.ids import KeyId, Role
from events.signing import Signer
from indexer.row import (
    CopyRow,
    add_copies,
    attribute_row,
    attributes_of,
    build_state,
    holder_row,
    profile_row,
    standing_row,
    stream_row,
    usage_row,
)
from indexer.store import Snapshot
from router_client.view import LocalView

VERSION = 2
COPIES_A_LINE = 2_000
MAX_LINE_BYTES = 8 << 20
ID = 16
SIGNED = b"kvledger snapshot\n"


class SnapshotRefusedError(KvledgerError):
    """A peer's snapshot can't be used; `reason` says why. Another peer, or the log, has everything."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the snapshot is refused: {reason}")
        self.reason = reason


async def write_snapshot(
    view: LocalView, topic: str, signer: Signer, last_sha256: Mapping[int, bytes]
) -> AsyncIterator[bytes]:
    """The lines, a few at a time. The view goes on being fed meanwhile. `last_sha256`: of the last record that
    was read of each partition, as of now."""
    digest, lines = hashlib.sha256(), 0
    for document in _documents(view, topic, last_sha256):
        line = _dump(document)
        digest.update(line)
        lines += 1
        yield line
        await asyncio.sleep(0)
    total = digest.digest()
    yield _dump(
        {
            "t": "end",
            "lines": lines,
            "sha256": total,
            "signer": signer.id,
            "signature": signer.sign(SIGNED + total),
        }
    )


def _documents(view: LocalView, topic: str, last_sha256: Mapping[int, bytes]) -> Iterator[dict[str, Any]]:
    registry = view.registry
    chosen = [key for key in view.streams if key in registry.registrations]
    yield {
        "t": "kvledger-snapshot",
        "v": VERSION,
        "log": registry.log,
        "topic": topic,
        "control": {"offset": registry.next_offset, "hash": registry.hash},
        "positions": {str(p): at for p, at in view.positions.items()},
        "last_sha256": {str(p): digest for p, digest in last_sha256.items()},
    }
    for key in chosen:
        stream = view.streams.get(key)
        if stream is not None and not stream.shed:
            yield from _stream(stream.state, stream.partition)
    for key in list(view.former):
        state = view.former.get(key)
        if state is not None:
            yield from _stream(state, registry.registrations[key].body.partition)


def _stream(state: StreamState, partition: int) -> Iterator[dict[str, Any]]:
    # Everything up to the first yield is of one instant.
    rows = {
        "t": "stream",
        "row": stream_row(state, partition),
        "holders": [holder_row(holder) for holder in state.holders.values()],
        "profiles": [profile_row(profile) for profile in state.profiles.values()],
        "standings": [standing_row(*which, standing) for which, standing in state.standings.items()],
        "usage": [usage_row(*which, used) for which, used in state.usage.items()],
    }
    tables = {where: dict(table) for where, table in state.copies.items() if table}
    yield rows
    numbers: dict[CopyAttributes, int] = {}
    for where, table in tables.items():
        yield from _copies(where, table, numbers)


def _copies(
    where: HolderGroup, table: Mapping[bytes, Copy], numbers: dict[CopyAttributes, int]
) -> Iterator[dict[str, Any]]:
    ids: list[bytes] = []
    parents: list[bytes] = []
    attributes: list[int] = []
    for at, (block, (parent, shared)) in enumerate(table.items(), 1):
        number = numbers.get(shared)
        if number is None:
            number = numbers[shared] = len(numbers)
            yield {"t": "attribute", "n": number, "row": attribute_row(shared)}
        ids.append(block)
        parents.append(parent)
        attributes.append(number)
        if len(ids) == COPIES_A_LINE or at == len(table):
            yield {
                "t": "copies",
                "holder": where[0],
                "group": where[1],
                "ids": b"".join(ids),
                "parents": b"".join(parents),
                "attributes": attributes,
            }
            ids, parents, attributes = [], [], []


async def read_snapshot(
    chunks: AsyncIterator[bytes], registry: Registry, topic: str, *, max_copies: int
) -> Snapshot:
    """The snapshot in a body. Raises SnapshotRefusedError for one that is cut, changed, unsigned, of another
    log or version, of another kv.control than `registry` read, or larger than this view may be."""
    reading = _Reading(registry, topic, max_copies)
    try:
        async for line in _lines(chunks):
            reading.take(line)
        return reading.done()
    except SnapshotRefusedError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise SnapshotRefusedError(f"a line can't be read ({type(error).__name__})") from error


class _Reading:
    def __init__(self, registry: Registry, topic: str, max_copies: int) -> None:
        self._registry, self._topic, self._max_copies = registry, topic, max_copies
        self._digest = hashlib.sha256()
        self._lines = 0
        self._snapshot: Snapshot | None = None
        self._ended = False
        self._state: StreamState | None = None
        self._attributes: dict[int, CopyAttributes] = {}
        self._copies = 0

    def take(self, line: bytes) -> None:
        if self._ended:
            raise SnapshotRefusedError("it goes on after its end")
        document = json.loads(line, object_hook=_bytes)
        kind = document["t"]
        if kind == "end":
            self._end(document)
            return
        self._digest.update(line)
        self._lines += 1
        if self._snapshot is None:
            self._snapshot = self._begin(document)
        elif kind == "stream":
            self._stream(document, self._snapshot)
        elif kind == "attribute":
            self._attributes[document["n"]] = attributes_of(document["row"])
        elif kind == "copies":
            self._take_copies(document)
        else:
            raise SnapshotRefusedError(f"a line of an unknown kind, {kind!r}")

    def done(self) -> Snapshot:
        if not self._ended or self._snapshot is None:
            raise SnapshotRefusedError("it is cut")
        return self._snapshot

    def _begin(self, document: Mapping[str, Any]) -> Snapshot:
        registry = self._registry
        if document["t"] != "kvledger-snapshot" or document["v"] != VERSION:
            raise SnapshotRefusedError("it is none of this version")
        if document["log"] != registry.log or document["topic"] != self._topic:
            raise SnapshotRefusedError("it is of another log")
        offset, running = document["control"]["offset"], document["control"]["hash"]
        if offset > registry.next_offset or registry.contradicts(offset - 1, running):
            raise SnapshotRefusedError("it rests on another kv.control than was read here")
        positions = {int(p): int(at) for p, at in document["positions"].items()}
        if any(p not in range(registry.partitions) for p in positions):
            raise SnapshotRefusedError("it names partitions that the log doesn't have")
        last = {int(p): bytes(digest) for p, digest in document["last_sha256"].items()}
        return Snapshot(registry.log, positions, last_sha256=last)

    def _stream(self, document: Mapping[str, Any], snapshot: Snapshot) -> None:
        row = document["row"]
        self._state = build_state(
            row,
            holders=document["holders"],
            profiles=document["profiles"],
            standings=document["standings"],
            usage=document["usage"],
        )
        self._attributes = {}
        snapshot.states.append((row["partition"], self._state))

    def _take_copies(self, document: Mapping[str, Any]) -> None:
        ids, parents, numbers = document["ids"], document["parents"], document["attributes"]
        if self._state is None or len(ids) != ID * len(numbers) or len(parents) != len(ids):
            raise SnapshotRefusedError("a line of copies is malformed")
        self._copies += len(numbers)
        if self._copies > self._max_copies:
            raise SnapshotRefusedError("it has more copies than this replica may hold")
        add_copies(self._state, self._rows(document["holder"], document["group"], ids, parents, numbers))

    def _rows(
        self, holder: str, group: int, ids: bytes, parents: bytes, numbers: Iterable[int]
    ) -> Iterator[CopyRow]:
        for at, number in enumerate(numbers):
            piece = slice(ID * at, ID * at + ID)
            yield holder, group, ids[piece], parents[piece], self._attributes[number]

    def _end(self, document: Mapping[str, Any]) -> None:
        total, registry = self._digest.digest(), self._registry
        if document["lines"] != self._lines or document["sha256"] != total:
            raise SnapshotRefusedError("its checksum doesn't fit")
        grant = registry.grants.get(KeyId(document["signer"]))
        if grant is None or grant.revoked_at is not None or Role.CONTROL not in grant.roles:
            raise SnapshotRefusedError("its signer has no control grant")
        if not registry.verify(grant.public_key, document["signature"], SIGNED + total):
            raise SnapshotRefusedError("its signature doesn't hold")
        self._ended = True


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        begin = 0
        while (end := rest.find(b"\n", begin)) >= 0:
            yield bytes(rest[begin : end + 1])
            begin = end + 1
        del rest[:begin]
        if len(rest) > MAX_LINE_BYTES:
            raise SnapshotRefusedError("a line is too long")
    if rest:
        raise SnapshotRefusedError("it is cut")


def _dump(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, default=_hex, separators=(",", ":")).encode() + b"\n"


def _hex(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"b": value.hex()}
    raise TypeError(f"{type(value).__name__} is no part of a snapshot")


def _bytes(document: dict[str, Any]) -> Any:
    if document.keys() == {"b"}:
        return bytes.fromhex(document["b"])
    return document
