"""One comparison of the whole index with the replay, and which copies' turn it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from auditor.copy_comparison import CopyComparison
from auditor.index_position import compare_positions
from auditor.index_replay import Ends, IndexReplay
from auditor.index_snapshot import Claimed
from auditor.row_column import Names
from auditor.row_finding import Findings
from auditor.stream_comparison import StreamComparison, StreamRow
from auditor.topic_comparison import TopicComparison
from events.ids import StreamKey
from events.topic import AUDIT, CONTROL, EVENTS, QUOTA

LEAST_COST = 50
"""What a stream costs beside its copies, in copies."""


@dataclass(frozen=True, slots=True)
class Round:
    """`positions`: up to where each topic (plain name) and partition was compared. `headless`: registered streams
    that began before the log does, by partition: they can't be replayed and weren't compared. `behind`: records
    that the index hadn't folded yet. `unstorable`: records that the index passed because PostgreSQL can't hold what
    they say. `compared_s`: when the snapshot was taken, `oldest_s`: when the copies that were compared longest ago
    were, both by the injected clock."""

    findings: Findings
    positions: dict[str, dict[int, int]]
    headless: dict[int, int]
    behind: int
    streams: int
    copies: int
    records: int
    unstorable: int
    compared_s: float
    oldest_s: float


class IndexComparison:
    """Compares round after round, and keeps of each stream what was found when its copies were compared last.
    `names` tells domains from aliases, as far as keys are here."""

    def __init__(self, names: Names | None = None) -> None:
        self._names = names
        self._copies: dict[StreamKey, tuple[float, Findings]] = {}

    def forget(self) -> None:
        """The replay begins anew."""
        self._copies = {}

    async def compare(
        self,
        connection: Any,
        replay: IndexReplay,
        claimed: Claimed,
        ends: Ends,
        taken_s: float,
        most_copies: int | None,
    ) -> Round:
        """`connection` is inside the repeatable-read transaction in which the index said what it `claimed`, at
        `taken_s`; `replay` was read to that, of a log that had these `ends`. Of copies no more than about
        `most_copies` are compared, None: all. Raises what PostgreSQL's driver does."""
        found = Findings()
        compare_positions(claimed, replay, ends, found)
        of_topic = TopicComparison(connection, found)
        await of_topic.control(replay.control)
        await of_topic.audit(replay.audit)
        await of_topic.quota(replay.quota)
        await CopyComparison(connection, replay.ahead, found).adrift()
        of_stream = StreamComparison(connection, replay.ahead, self._names, found)
        streams = await of_stream.streams(replay.partitions)
        copies = await self._compare_copies(connection, replay, streams, taken_s, most_copies)
        for _, one in self._copies.values():
            found.merge(one)
        return Round(
            findings=found,
            positions={
                topic.name: dict(sorted(claimed.offsets(topic).items()))
                for topic in (CONTROL, EVENTS, AUDIT, QUOTA)
            },
            headless={n: len(rows.headless) for n, rows in replay.partitions.items() if rows.headless},
            behind=sum(
                max(0, end - claimed.offsets(EVENTS).get(number, 0))
                for (topic, number), end in ends.items()
                if topic is EVENTS and number in replay.partitions
            ),
            streams=len(streams),
            copies=copies,
            records=sum(rows.records for rows in replay.partitions.values()),
            unstorable=sum(len(offsets) for offsets in claimed.unstorable.values()),
            compared_s=taken_s,
            oldest_s=min((at for at, _ in self._copies.values()), default=taken_s),
        )

    async def _compare_copies(
        self,
        connection: Any,
        replay: IndexReplay,
        streams: Mapping[StreamKey, StreamRow],
        taken_s: float,
        most_copies: int | None,
    ) -> int:
        """Of those streams first that have waited longest; how many copies it read."""
        self._copies = {key: known for key, known in self._copies.items() if key in streams}
        copies = cost = 0
        for key in sorted(streams, key=lambda key: self._copies[key][0] if key in self._copies else -1.0):
            if most_copies is not None and cost >= most_copies:
                break
            of_one = Findings()
            await StreamComparison(connection, replay.ahead, self._names, of_one).usage(streams[key])
            read = await CopyComparison(connection, replay.ahead, of_one).copies(streams[key])
            copies, cost = copies + read, cost + read + LEAST_COST
            self._copies[key] = (taken_s, of_one)
        return copies
