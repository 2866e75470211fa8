"""`kv.pulse` and `kv.signals`: what hooks and readers say to each other about freshness; never audited."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from events.ids import Alarm, Basis
from events.model.field import Count, GroupIndex, Hex16, Hex32, Name, Offset, Rank, Record, Text


class Echo(Record):
    """The newest beacon after which the hook has confirmed that it has everything."""

    offset: Offset
    nonce: Hex16


class Load(Record):
    running: Count
    waiting: Count
    kv_used: Annotated[float, Field(ge=0, le=1)]


class PulseChecksum(Record):
    """Inventory of one holder and group over all domains, as of `next_seq`."""

    holder: Name
    group: GroupIndex
    count: Count
    checksum: Hex16


class RankPulse(Record):
    """`next_seq` and `prev` say where the stream stands; `echo` counts once a reader has applied that far."""

    rank: Rank
    epoch: Name
    next_seq: Count
    prev: Hex32
    basis: Basis
    echo: Echo | None = None
    checksums: tuple[PulseChecksum, ...] = ()
    load: Load | None = None
    alarm: Alarm | None = None
    """Only there while there is one, so that a reader that doesn't know it yet leaves out no other stream."""


class Pulse(Record):
    """A hook's unlogged heartbeat for all ranks of a worker, every 200 ms, idle or not."""

    v: Literal[1] = 1
    worker: Name
    ranks: Annotated[tuple[RankPulse, ...], Field(min_length=1)]


class Beacon(Record):
    """A reader's mark in `kv.signals`; it counts only at the offset where that reader read it back."""

    type: Literal["beacon"] = "beacon"
    reader: Name
    nonce: Hex16


class ResyncRequested(Record):
    """Somebody could not follow this stream: its hook answers with a snapshot."""

    type: Literal["resync_requested"] = "resync_requested"
    worker: Name
    rank: Rank
    epoch: Name
    reason: Text


class ResetTurn(Record):
    """A hook whose engine can only be emptied whole claims its turn, repeats that every two seconds, and gives it back.
    `nonce` names the claim; `ticket` is the offset at which it was first read, once its hook has read it."""

    type: Literal["reset_turn"] = "reset_turn"
    worker: Name
    rank: Rank
    nonce: Hex16
    ticket: Offset | None = None
    state: Literal["waits", "resets", "done"]


Signal = Annotated[Beacon | ResyncRequested | ResetTurn, Field(discriminator="type")]
