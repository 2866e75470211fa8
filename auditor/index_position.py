"""The positions that the index claims, against the log itself."""

from __future__ import annotations

from typing import Any

from auditor.index_replay import Ends, IndexReplay
from auditor.index_snapshot import Claimed
from auditor.row_finding import Finding, FindingKind, Findings, LogPlace
from events.topic import CONTROL, EVENTS, Topic


def compare_positions(claimed: Claimed, replay: IndexReplay, ends: Ends, found: Findings) -> None:
    """Adds to `found` every position of another log, of no partition, past the log's end, or behind which other
    records are than in the log. `replay` was read to `claimed`; `ends` is where the log ended then."""
    for (topic, number), row in sorted(claimed.rows.items(), key=lambda item: (item[0][0].name, item[0][1])):
        _compare(topic, number, row, replay, ends, found)


def _compare(topic: Topic, number: int, row: Any, replay: IndexReplay, ends: Ends, found: Findings) -> None:
    where, offset = f"{topic.name}/{number}", row["next_offset"]

    def add(index: str, log: str) -> None:
        at = LogPlace(topic.name, number, offset - 1) if offset else None
        found.add(Finding(FindingKind.POSITION, where, index, log, at))

    if row["log_id"] not in ("", replay.ahead.fold.log):
        add(f"log_id={row['log_id']}", f"log_id={replay.ahead.fold.log}")
    if topic is EVENTS and number not in replay.partitions:
        if not replay.has_partition(number):
            add(f"next_offset={offset}", "no such partition")
        return
    end = ends[topic, number]
    if offset > end:
        add(f"next_offset={offset}", f"the log ends at {end}")
        return
    stood, digest = replay.stood(topic, number)
    name = "control_hash" if topic is CONTROL else "last_record_sha256"
    # Without a digest the log holds nothing of what is before that position.
    if stood == offset and digest and row[name] and bytes(row[name]) != digest:
        add(f"next_offset={offset} {name}={row[name].hex()}", f"{name}={digest.hex()}")
