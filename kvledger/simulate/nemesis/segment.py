"""Cuts the newest records off a partition's folder while its broker is down, as an unclean election would.

The folder is left as a broker leaves it that had never got them: log cut at a batch's border, indexes and
producer snapshots that know more removed (the broker makes them again), checkpoints lowered.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from events.errors import KvledgerError

# Base offset, length of the rest, leader epoch, magic, checksum, attributes, last offset delta.
_HEAD = struct.Struct(">qiibIhi")
_BEFORE_LENGTH = 12
_MAGIC = 2
_CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
_CLEAN_MARK = ".kafka_cleanshutdown"


class SegmentError(KvledgerError):
    """The folder holds no log that can be cut; nothing was changed."""


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """One batch of records in a segment file: bytes [start, end), offsets [first, after)."""

    start: int
    end: int
    first: int
    after: int


@dataclass(frozen=True, slots=True)
class Cut:
    """What was cut off: records at offsets [end, end + records) of the partition are no more."""

    partition: str
    end: int
    records: int


def batches(data: bytes) -> Iterator[BatchPlace]:
    """The whole batches of a segment file, in order; ends at the first that isn't whole."""
    at = 0
    while at + _HEAD.size <= len(data):
        first, length, _, magic, _, _, delta = _HEAD.unpack_from(data, at)
        end = at + _BEFORE_LENGTH + length
        if magic != _MAGIC or length <= 0 or end > len(data):
            return
        yield BatchPlace(at, end, first, first + delta + 1)
        at = end


def cut_tail(data_folder: Path, partition: str, count: int) -> Cut | None:
    """Cuts the last `count` batches of `TOPIC-NUMBER` below the broker's data folder, all of the newest
    segment if it holds fewer. None if that segment is empty. The broker must be down.

    Raises SegmentError.
    """
    folder = data_folder / partition
    segments = sorted(folder.glob("*.log"))
    if not segments:
        raise SegmentError(f"{partition} has no segment")
    newest = segments[-1]
    places = list(batches(newest.read_bytes()))
    if not places or count < 1:
        return None
    kept = places[: max(0, len(places) - count)]
    end = kept[-1].after if kept else places[0].first
    os.truncate(newest, kept[-1].end if kept else 0)
    for kind in (".index", ".timeindex", ".txnindex"):
        newest.with_suffix(kind).unlink(missing_ok=True)
    for snapshot in folder.glob("*.snapshot"):
        if int(snapshot.stem) > end:
            snapshot.unlink()
    for name in _CHECKPOINTS:
        _lower(data_folder / name, partition, end)
    (data_folder / _CLEAN_MARK).unlink(missing_ok=True)
    return Cut(partition, end, places[-1].after - end)


def _lower(checkpoint: Path, partition: str, end: int) -> None:
    """Format: version, count, then a line `TOPIC NUMBER OFFSET` each."""
    if not checkpoint.is_file():
        return
    topic, _, number = partition.rpartition("-")
    lines = checkpoint.read_text().splitlines()
    for at, line in enumerate(lines):
        words = line.split()
        if words[:2] == [topic, number] and len(words) == 3 and int(words[2]) > end:
            lines[at] = f"{topic} {number} {end}"
    checkpoint.write_text("".join(f"{line}\n" for line in lines))
