"""The index digest: equal digests at one position mean equal indexes, whatever store holds them.

Over copies (holder, group, id, state) and streams (epoch, next seq, prev, state), nothing else. Streams that
control has superseded don't count, and neither do their volatile copies; what they reported of a durable
holder outlives them. Streams that nobody has registered at the named position of control don't count with
anything: a store keeps few of them or none, so no flood of them makes digests differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from events.fold.registry import Registry
from events.fold.state import StreamState
from events.fold.stranger import counts
from events.ids import StreamKey


def stream_line(stream: StreamKey, epoch_no: int, next_seq: int, prev: bytes, status: str) -> bytes:
    return f"S {stream} {epoch_no} {next_seq} {prev.hex()} {status}\n".encode()


def copy_line(stream: StreamKey, holder: str, group: int, block: bytes, copy_state: str) -> bytes:
    return f"C {stream} {holder} {group} {block.hex()} {copy_state}\n".encode()


def digest_lines(lines: Iterable[bytes]) -> str:
    """Hex SHA-256 over the sorted lines."""
    digest = hashlib.sha256()
    for line in sorted(lines):
        digest.update(line)
    return digest.hexdigest()


def index_digest(states: Iterable[StreamState], registry: Registry) -> str:
    """Digest of a fold held in memory, at the position that the states and the registry stand for."""
    lines: list[bytes] = []
    for state in states:
        if not counts(registry, state.key):
            continue
        over = superseded(registry, state.key, state.epoch_no)
        if not over:
            lines.append(
                stream_line(state.key, state.epoch_no, state.next_seq, state.prev, state.status.value)
            )
        for (holder, group), table in state.copies.items():
            if over and state.holders[holder].durable_id is None:
                continue
            lines.extend(
                copy_line(state.key, holder, group, block, attributes.state.value)
                for block, (_, attributes) in table.items()
            )
    return digest_lines(lines)


def superseded(registry: Registry, stream: StreamKey, epoch_no: int) -> bool:
    """Whether a registration of the same (worker, rank) with a later epoch_no stands."""
    current = registry.current.get((stream.worker, stream.rank))
    return current is not None and registry.registrations[current].epoch_no > epoch_no
