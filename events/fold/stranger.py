"""Whose a stream is, as far as control says: of a registration, of nobody for good, or of nobody yet.

A registration pins its stream to a partition: what stands under its name in another is nobody's, for good.

A header names the offset of its registration in `kv.control` (`epoch_no`). Once the registry has read that
offset and doesn't know the stream, no record that follows can register it there.
"""

from __future__ import annotations

from events.fold.registry import Registry
from events.ids import StreamKey


def counts(registry: Registry, stream: StreamKey, partition: int | None = None) -> bool:
    """Whether the digest at this position of control counts the stream (in that partition, if one is given): it
    is registered there, or the registry has read nothing at all, so that no position is named and the fold is
    looked at by itself."""
    registration = registry.registrations.get(stream)
    if registration is None:
        return registry.next_offset == 0
    return partition is None or registration.body.partition == partition


def misplaced(registry: Registry, stream: StreamKey, partition: int) -> bool:
    """Whether the stream's registration pins another partition."""
    registration = registry.registrations.get(stream)
    return registration is not None and registration.body.partition != partition


def foreign(registry: Registry, stream: StreamKey, epoch_no: int) -> bool:
    """Whether a stream whose first record names `epoch_no` is provably nobody's.

    False doesn't mean registered: it may be registered later. The registry must have been read up to an end
    that `kv.control` had after the record was received: a name that was registered under another number in
    the meantime is not foreign.
    """
    return epoch_no < registry.next_offset and stream not in registry.registrations
