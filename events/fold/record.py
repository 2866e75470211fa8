"""One raw record of `kv.events` against all streams of its partition: the step every projection shares."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

from events.codec import BatchDecodeError, decode_batch
from events.fold.apply import apply, apply_undecodable
from events.fold.change import Changes
from events.fold.state import StreamState
from events.ids import StreamKey

Streams = MutableMapping[StreamKey, StreamState]
Admit = Callable[[StreamKey, int], bool]
"""(stream, epoch_no): whether a stream that isn't known yet may come to exist."""
FOREIGN = "foreign_stream"
"""Why a record is dead whose stream wasn't admitted."""


def fold_record(
    streams: Streams, value: bytes, admit: Admit | None = None
) -> tuple[Changes | None, str | None]:
    """Folds one record: (what changed or None, why it must go whole to the dead letters or None).

    A stream comes to exist with its first decodable record, if `admit` lets it. Garbage that names no known
    stream, or none at all, changes no stream. Raises nothing but what `admit` raises; then nothing changed.
    """
    try:
        batch = decode_batch(value)
    except BatchDecodeError as error:
        state = streams.get(error.stream) if error.stream is not None else None
        if state is None or error.seq is None:
            return None, error.reason
        return apply_undecodable(state, error.seq, error.reason), error.reason
    header = batch.header
    state = streams.get(header.stream)
    if state is None:
        if admit is not None and not admit(header.stream, header.epoch_no):
            return None, FOREIGN
        state = streams[header.stream] = StreamState(header.stream, header.epoch_no)
    changes = apply(state, batch)
    return changes, changes.detail if changes.dead else None
