"""What an audit of the index found: counted whole, shown up to a bound, each with both values. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

SHOWN = 20


class FindingKind(StrEnum):
    """What differs: a row of this table, or the position that the index claims."""

    POSITION = "position"
    STREAM = "stream"
    HOLDER = "holder"
    PROFILE = "profile"
    ALIAS = "alias"
    COPY = "copy"
    USAGE = "usage"
    ACK = "ack"
    DOMAIN = "domain"
    REGISTRATION = "registration"
    REQUEST = "request"
    LIMIT = "limit"
    STORE = "store"
    QUOTA = "quota"
    QUOTA_CHANGE = "quota_change"
    VERDICT = "verdict"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A record: topic under its plain name, partition, offset."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class Finding:
    """`index` and `log` are what either says, None where it has nothing; `record` is the one that last touched
    it, None where no record that is remembered did."""

    kind: FindingKind
    where: str
    index: str | None
    log: str | None
    record: LogPlace | None

    def __str__(self) -> str:
        by = f"; last touched by {self.record}" if self.record is not None else ""
        return f"{self.kind.value} {self.where}: index {_said(self.index)}, log {_said(self.log)}{by}"


def _said(value: str | None) -> str:
    return "has none" if value is None else f"has {value}"


@dataclass(slots=True)
class Findings:
    """`counts` holds all of them, `shown` the first `SHOWN` of each kind."""

    counts: Counter[FindingKind] = field(default_factory=Counter)
    shown: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.counts[finding.kind] += 1
        if self.counts[finding.kind] <= SHOWN:
            self.shown.append(finding)

    def differ(
        self,
        kind: FindingKind,
        where: str,
        row: Mapping[str, Any],
        wanted: Mapping[str, Any],
        record: LogPlace | None,
    ) -> None:
        """Adds the index's `row` if it isn't as it is `wanted`, as `differing` says."""
        both = differing(row, wanted)
        if both is not None:
            self.add(Finding(kind, where, *both, record))

    def merge(self, other: Findings) -> None:
        room = {kind: SHOWN - min(SHOWN, count) for kind, count in self.counts.items()}
        self.counts += other.counts
        for finding in other.shown:
            left = room.get(finding.kind, SHOWN)
            if left > 0:
                room[finding.kind] = left - 1
                self.shown.append(finding)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "counts": {kind.value: self.counts[kind] for kind in FindingKind if self.counts[kind]},
            "shown": [{**asdict(one), "kind": one.kind.value} for one in self.shown],
        }


def differing(index: Mapping[str, Any], log: Mapping[str, Any]) -> tuple[str, str] | None:
    """Both sides of the columns that differ, as text; None if none does. In `log` a set means any of it."""
    names = [name for name, value in log.items() if not _fits(index[name], value)]
    return (told(index, names), told(log, names)) if names else None


def _fits(have: Any, wanted: Any) -> bool:
    if isinstance(wanted, frozenset):
        return any(_fits(have, one) for one in wanted)
    return bool(have == _without_nul(wanted))


def _without_nul(value: Any) -> Any:
    """PostgreSQL has no NUL in text: the index holds U+FFFD in its place."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [_without_nul(one) for one in value]
    if isinstance(value, dict):
        return {_without_nul(name): _without_nul(one) for name, one in value.items()}
    return value


def told(row: Mapping[str, Any], names: Iterator[str] | list[str] | None = None) -> str:
    """Columns as text, without an id of more than it takes to name it."""
    return " ".join(f"{name}={plain(row[name])}" for name in (row if names is None else names))


def told_key(which: tuple[Any, ...]) -> str:
    """The key that a row is found by."""
    return "/".join(one.hex() if isinstance(one, bytes) else str(one) for one in which)


def told_extra(row: Mapping[str, Any], key: tuple[str, ...]) -> str:
    """A row of the index that the log has nothing for, without its key and what takes too long to read."""
    hidden = {*key, "id", "stream_id", "content", "layout", "updated_at"}
    return told(row, [name for name in row.keys() if name not in hidden])  # noqa: SIM118 - rows aren't mappings


def plain(value: Any) -> str:
    """One value as people read it."""
    if value is None:
        return "none"
    if isinstance(value, bytes):
        return value.hex() or "empty"
    if isinstance(value, frozenset):
        return "|".join(sorted(plain(one) for one in value))
    if isinstance(value, list | tuple):
        return "[" + ",".join(plain(one) for one in value) + "]"
    return str(value)
