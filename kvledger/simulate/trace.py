"""Request traces: Mooncake's JSON lines and the run-length form, one request at a time.

Mooncake: `{"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}`, 512 tokens an id.
Run-length: `{"t": s, "s": session|null, "in", "out", "blk", "runs": [[first id, count], ...]}`.
Either form may carry `"tenant"`. A file may be gzipped; which it is shows in its first bytes.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from pydantic import TypeAdapter, ValidationError

from events.errors import KvledgerError
from events.model.field import Name

MOONCAKE_BLOCK_TOKENS = 512
MAX_LINE_BYTES = 16 << 20
MAX_TOKENS = 1 << 24
_GZIP_MAGIC = b"\x1f\x8b"


class TraceError(KvledgerError):
    """A trace cannot be read; `path`, `line` (1-based, 0 for the file itself) and `reason` say where and why.

    Requests yielded before it are good. The caller shows the message and stops.
    """

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: its prompt as ids of `block_tokens` tokens each, equal ids being equal content.

    `prefix_ids` covers the prompt in order; the last id may stand for a partial block, or a partial block
    may have no id at all. `output_ids` continues the same row of ids over the answer when the next turn
    will repeat it (the generator knows, recorded traces don't: there it is empty and outputs are unique).
    """

    arrival_s: float
    session: str | None
    tenant: str
    prefix_ids: tuple[int, ...]
    input_tokens: int
    output_tokens: int
    block_tokens: int
    output_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Line:
    arrival_s: float
    session: str | None
    tenant: str | None
    runs: Sequence[tuple[int, int]]
    input_tokens: int
    output_tokens: int
    block_tokens: int
    shared_tokens: int
    shared_key: tuple[int, int] | None


class _BadLineError(Exception):
    """Internal: the reason without its place."""


def read_trace(
    path: Path | str, *, tenants: Sequence[str] = ("default",), limit: int | None = None
) -> Iterator[TraceRequest]:
    """Yield a trace's requests in file order, reading as it goes; memory grows with unique ids only.

    Ids come back dense, numbered by first appearance. In the run-length form ids of a session are that
    session's own, except its leading `tool` + `sys` tokens, which sessions with equal sizes of both share.
    A request without `tenant` belongs to one of `tenants` by its session, else by its conversation's
    root block, so that a conversation stays within one tenant. Raises `TraceError`.
    """
    if not tenants:
        raise ValueError("tenants must name at least one tenant")
    name = str(path)
    interned = _Interner()
    count = 0
    try:
        with open(path, "rb") as raw:
            for number, text in _lines(name, raw):
                if limit is not None and count >= limit:
                    return
                try:
                    line = _parse(text)
                except _BadLineError as error:
                    raise TraceError(name, number, str(error)) from error
                ids = interned.ids(line)
                tenant = line.tenant or _tenant_of(line.session, ids, tenants)
                count += 1
                yield TraceRequest(
                    line.arrival_s,
                    line.session,
                    tenant,
                    ids,
                    line.input_tokens,
                    line.output_tokens,
                    line.block_tokens,
                )
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise TraceError(name, 0, f"damaged gzip data ({error})") from error
        raise TraceError(name, 0, error.strerror or str(error)) from error
    except (EOFError, zlib.error) as error:
        raise TraceError(name, 0, f"damaged or truncated gzip data ({error})") from error
    if count == 0 and limit != 0:
        raise TraceError(name, 0, "holds no request")


@dataclass(frozen=True, slots=True)
class TraceSurvey:
    """How many requests a trace has, and whose they are, in order of appearance."""

    requests: int
    tenants: tuple[str, ...]


def survey_trace(path: Path | str, *, tenants: Sequence[str], limit: int | None = None) -> TraceSurvey:
    """Reads a trace whole, so that whatever is wrong with it is found before anything is started.

    Raises `TraceError`, also for a tenant whose name can't be a domain's.
    """
    count = 0
    found: dict[str, None] = {}
    for request in read_trace(path, tenants=tenants, limit=limit):
        count += 1
        if request.tenant not in found:
            try:
                TypeAdapter(Name).validate_python(request.tenant)
            except ValidationError as error:
                raise TraceError(
                    str(path), 0, f"tenant {_shown(request.tenant)} can't name a domain"
                ) from error
            found[request.tenant] = None
    return TraceSurvey(count, tuple(found))


class _Interner:
    """Dense ids by first appearance; a session's ids never meet another session's."""

    def __init__(self) -> None:
        self._known: dict[object, int] = {}
        self._shared: dict[str, tuple[int, tuple[int, int]]] = {}

    def ids(self, line: _Line) -> tuple[int, ...]:
        known = self._known
        raw = chain.from_iterable(range(first, first + count) for first, count in line.runs)
        if line.session is None:
            return tuple([known.setdefault(ident, len(known)) for ident in raw])
        session = line.session
        if line.shared_key is not None:
            self._shared[session] = (line.shared_tokens // line.block_tokens, line.shared_key)
        shared, key = self._shared.get(session, (0, (0, 0)))
        out: list[int] = []
        for place, ident in enumerate(raw):
            scope = (key, ident) if place < shared else (session, ident)
            out.append(known.setdefault(scope, len(known)))
        return tuple(out)


def _lines(name: str, raw: BinaryIO) -> Iterator[tuple[int, bytes]]:
    magic = raw.read(2)
    raw.seek(0)
    source = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if magic == _GZIP_MAGIC else raw
    number = 0
    while text := source.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(text) > MAX_LINE_BYTES:
            raise TraceError(name, number, f"longer than {MAX_LINE_BYTES} bytes")
        if text.strip():
            yield number, text


def _parse(text: bytes) -> _Line:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _BadLineError(f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise _BadLineError(f"a request is an object, this is a {type(value).__name__}")
    record = cast(dict[str, object], value)
    if "hash_ids" in record:
        line = _mooncake(record)
    elif "runs" in record:
        line = _run_length(record)
    else:
        raise _BadLineError("neither hash_ids (Mooncake) nor runs (run-length)")
    blocks = sum(count for _, count in line.runs)
    whole, rest = divmod(line.input_tokens, line.block_tokens)
    if blocks not in (whole, whole + (rest > 0)):
        raise _BadLineError(
            f"{blocks} ids don't cover {line.input_tokens} tokens in blocks of {line.block_tokens}"
        )
    return line


def _mooncake(record: dict[str, object]) -> _Line:
    ids = record["hash_ids"]
    if not isinstance(ids, list):
        raise _BadLineError("hash_ids is not a list")
    runs = [(_integer(ident, "hash_ids"), 1) for ident in cast(list[object], ids)]
    tokens = _tokens(record, "input_length", least=1)
    return _Line(
        _number(record, "timestamp") / 1000,
        _text(record, "session"),
        _text(record, "tenant"),
        runs,
        tokens,
        _tokens(record, "output_length"),
        MOONCAKE_BLOCK_TOKENS,
        0,
        None,
    )


def _run_length(record: dict[str, object]) -> _Line:
    value = record["runs"]
    if not isinstance(value, list):
        raise _BadLineError("runs is not a list")
    runs: list[tuple[int, int]] = []
    for run in cast(list[object], value):
        if not isinstance(run, list) or len(run) != 2:
            raise _BadLineError("a run is [first id, count]")
        count = _integer(run[1], "runs")
        if not 0 < count <= MAX_TOKENS:
            raise _BadLineError(f"a run of {count} ids")
        runs.append((_integer(run[0], "runs"), count))
    shared_key = None
    if "tool" in record or "sys" in record:
        shared_key = (_tokens(record, "tool"), _tokens(record, "sys"))
    return _Line(
        _number(record, "t"),
        _text(record, "s"),
        _text(record, "tenant"),
        runs,
        _tokens(record, "in", least=1),
        _tokens(record, "out"),
        _tokens(record, "blk", least=1),
        sum(shared_key) if shared_key else 0,
        shared_key,
    )


def _integer(value: object, field: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise _BadLineError(f"{field} holds {_shown(value)}, not an unsigned 64-bit integer")
    return value


def _tokens(record: dict[str, object], field: str, *, least: int = 0) -> int:
    value = record.get(field)
    if type(value) is not int or not least <= value <= MAX_TOKENS:
        raise _BadLineError(f"{field} is {_shown(value)}, not an integer from {least} to {MAX_TOKENS}")
    return value


def _number(record: dict[str, object], field: str) -> float:
    value = record.get(field)
    if type(value) not in (int, float) or not 0 <= cast(float, value) < 1e15:
        raise _BadLineError(f"{field} is {_shown(value)}, not a time from 0 on")
    return float(cast(float, value))


def _text(record: dict[str, object], field: str) -> str | None:
    value = record.get(field)
    if value is None or (isinstance(value, str) and value):
        return value
    raise _BadLineError(f"{field} is {_shown(value)}, not a name")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _tenant_of(session: str | None, ids: Sequence[int], tenants: Sequence[str]) -> str:
    if len(tenants) == 1:
        return tenants[0]
    root = session if session is not None else str(ids[min(1, len(ids) - 1)] if ids else 0)
    return tenants[zlib.crc32(root.encode()) % len(tenants)]
