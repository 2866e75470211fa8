"""Where two indexes differ, stream by stream: bounded to show, counted whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from events.fold.digest import superseded
from events.fold.registry import Registry
from events.fold.state import StreamState
from events.fold.stranger import counts
from events.ids import StreamKey

SHOWN = 20
COPIES_OF_STREAM = """
SELECT h.name, c.group_index, c.block, a.state
FROM copy c JOIN holder h ON h.id = c.holder_id JOIN copy_attribute a ON a.id = c.attribute_id
WHERE h.stream_id = $1
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """`what` is a column of the stream, or `holder/group/block`; None: the one side has no such thing."""

    stream: str
    what: str
    index: str | None
    log: str | None


@dataclass(slots=True)
class Differences:
    """`shown` holds the first `SHOWN` of each kind."""

    streams: int = 0
    copies: int = 0
    shown: list[Difference] = field(default_factory=list)
    _room: dict[str, int] = field(default_factory=lambda: {"stream": SHOWN, "copy": SHOWN})

    def add(self, kind: str, difference: Difference) -> None:
        if kind == "stream":
            self.streams += 1
        else:
            self.copies += 1
        if self._room[kind]:
            self._room[kind] -= 1
            self.shown.append(difference)

    def as_json(self) -> dict[str, Any]:
        return {
            "streams": self.streams,
            "copies": self.copies,
            "shown": [asdict(one) for one in self.shown],
        }


async def find_differences(
    connection: Any, registry: Registry, states: Iterable[StreamState], partitions: Collection[int]
) -> Differences:
    """Compares the rows that the connection's transaction sees with states of the same position. Holds the
    copies of one stream at a time."""
    found = Differences()
    folded = {
        state.key: state
        for state in states
        if counts(registry, state.key) and not superseded(registry, state.key, state.epoch_no)
    }
    for row in await connection.fetch("SELECT * FROM stream ORDER BY worker, rank, epoch_no"):
        key = StreamKey(row["worker"], row["rank"], row["epoch"])
        if row["partition"] not in partitions or not counts(registry, key, row["partition"]):
            continue
        if superseded(registry, key, row["epoch_no"]):
            continue
        state = folded.pop(key, None)
        stored = {
            "epoch_no": str(row["epoch_no"]),
            "next_seq": str(row["next_seq"]),
            "prev": bytes(row["prev"]).hex(),
            "status": str(row["status"]),
        }
        _compare_stream(found, key, stored, None if state is None else _values(state))
        if state is not None:
            await _compare_copies(connection, found, row["id"], state)
    for key, state in sorted(folded.items()):
        _compare_stream(found, key, None, _values(state))
    return found


def _values(state: StreamState) -> dict[str, str]:
    return {
        "epoch_no": str(state.epoch_no),
        "next_seq": str(state.next_seq),
        "prev": state.prev.hex(),
        "status": state.status.value,
    }


def _compare_stream(
    found: Differences, key: StreamKey, stored: dict[str, str] | None, folded: dict[str, str] | None
) -> None:
    if stored is None or folded is None:
        have = stored or folded or {}
        text = " ".join(f"{name}={value}" for name, value in have.items())
        one = Difference(str(key), "stream", text if stored else None, text if folded else None)
        found.add("stream", one)
        return
    for name, value in stored.items():
        if folded[name] != value:
            found.add("stream", Difference(str(key), name, value, folded[name]))


async def _compare_copies(connection: Any, found: Differences, stream_id: int, state: StreamState) -> None:
    stored: dict[tuple[str, int, bytes], str] = {}
    async for holder, group, block, copy_state in connection.cursor(
        COPIES_OF_STREAM, stream_id, prefetch=5_000
    ):
        stored[holder, group, bytes(block)] = copy_state
    for (holder, group), table in state.copies.items():
        for block, (_, attributes) in table.items():
            have = stored.pop((holder, group, block), None)
            if have != attributes.state.value:
                what = f"{holder}/{group}/{block.hex()}"
                found.add("copy", Difference(str(state.key), what, have, attributes.state.value))
    for (holder, group, block), have in stored.items():
        found.add("copy", Difference(str(state.key), f"{holder}/{group}/{block.hex()}", have, None))
