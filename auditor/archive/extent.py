"""Up to where each partition is archived, how far that is behind, and what Kafka may drop. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from auditor.archive.manifest import Manifest, coverage, kept_segments, name_of
from auditor.segment import Partition
from events.model.audit import Segment
from events.topic import EVENTS, SUBJECTS

RETENTION_SHARE = 0.5
"""A record that isn't archived after this share of the topic's retention may soon be lost."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Of one partition. `archived_from` to `archived_to` is kept without a hole and reaches the log's start; both are
    `log_start` if nothing is. `sealed_to` is where the last sealed segment ends."""

    topic: str
    partition: int
    log_start: int
    log_end: int
    sealed_to: int
    archived_from: int
    archived_to: int

    @property
    def unarchived(self) -> int:
        """Offsets that only the log holds."""
        return max(0, self.log_end - self.archived_to)


def extents(
    manifest: Manifest | None, starts: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> list[Extent]:
    """By topic and partition. `starts` and `ends` are the log's own, now."""
    kept = coverage(kept_segments(manifest).values()) if manifest is not None else {}
    sealed: dict[Partition, int] = {}
    for segment in manifest.segments if manifest is not None else ():
        sealed[segment.topic, segment.partition] = segment.next
    found: list[Extent] = []
    for where, start in sorted(starts.items()):
        run = kept[where].run_at(start) if where in kept else None
        first, upto = run or (start, start)
        found.append(Extent(*where, start, ends.get(where, start), sealed.get(where, 0), first, upto))
    return found


def subjects_extent(manifest: Manifest | None, held: range) -> Extent:
    """The same of kv.subjects, of which the log holds `held`."""
    runs = [one.segment for one in manifest.subjects] if manifest is not None else []
    kept = coverage(runs).get((SUBJECTS.name, 0))
    run = kept.run_at(held.start) if kept is not None else None
    first, upto = run or (held.start, held.start)
    return Extent(SUBJECTS.name, 0, held.start, held.stop, runs[-1].next if runs else 0, first, upto)


def dropped_unarchived(manifest: Manifest, starts: Mapping[Partition, int]) -> list[Segment]:
    """Sealed segments that the log dropped before they were archived, and that no run has noted yet."""
    kept, known = kept_segments(manifest), frozenset(manifest.gone)
    return [
        segment
        for leaf, segment in enumerate(manifest.segments)
        if leaf not in kept
        and leaf not in known
        and segment.first < starts.get((segment.topic, segment.partition), 0)
    ]


def begun_before(manifest: Manifest, gone: Iterable[Segment]) -> list[str]:
    """Those of `gone` that lie behind something archived of their partition: an archive that begins late lacks what
    was before it, and that is no fault of it."""
    first: dict[Partition, int] = {}
    for segment in (*kept_segments(manifest).values(), *(one.segment for one in manifest.subjects)):
        first.setdefault((segment.topic, segment.partition), segment.first)
    return [
        name_of(segment)
        for segment in gone
        if segment.first >= first.get((segment.topic, segment.partition), segment.next)
    ]


def releasable(manifest: Manifest, starts: Mapping[Partition, int], before_ms: int) -> dict[int, int]:
    """By partition of kv.events, up to which offset the log may drop records: only what is archived without a hole
    from the log's start on, in segments whose newest record is older than `before_ms`. Never of kv.control."""
    kept = {one.leaf: one for one in manifest.kept}
    upto: dict[int, int] = {}
    reached = {where[1]: start for where, start in starts.items() if where[0] == EVENTS.name}
    stopped: set[int] = set()
    for leaf, segment in enumerate(manifest.segments):
        p = segment.partition
        if segment.topic != EVENTS.name or p not in reached or p in stopped or segment.next <= reached[p]:
            continue
        if leaf not in kept or segment.first > reached[p] or not 0 <= kept[leaf].newest_ms < before_ms:
            stopped.add(p)
            continue
        reached[p] = upto[p] = segment.next
    return upto


def retention_danger(
    extent: Extent, retention_ms: int, retention_bytes: int, oldest_ms: int, now_ms: int
) -> str:
    """Why Kafka may drop records of this partition before they are archived; "" if it can't yet. `oldest_ms` is the
    timestamp of the oldest one that only the log holds, negative if there is none."""
    name = f"{extent.topic}/{extent.partition}"
    if oldest_ms < 0 or not extent.unarchived:
        return ""
    if retention_bytes >= 0:
        return (
            f"{name} has a retention of {retention_bytes} bytes, which drops records whether archived or not"
        )
    age_ms = now_ms - oldest_ms
    if retention_ms >= 0 and age_ms >= retention_ms * RETENTION_SHARE:
        hours = age_ms / 3_600_000
        return (
            f"{name} holds records from offset {extent.archived_to} on that are {hours:.1f} h old and not archived;"
            f" Kafka keeps them {retention_ms / 3_600_000:.1f} h"
        )
    return ""
