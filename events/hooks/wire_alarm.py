"""Counts and tells what of an engine's batches can't be read: an engine that changed its encoding must not look
like an idle one. The stream itself is flagged by `EngineStream`; this is for whoever runs the bridge."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from events.hooks.engine_event import (
    BlockRemoved,
    BlockStored,
    EngineBatch,
    EngineTier,
    MalformedEvent,
    UnknownEvent,
)

LOG = logging.getLogger(__name__)
_TOLD_KEPT = 64


@dataclass(slots=True)
class WireCounts:
    """Events since the start: `malformed` lost what they said, `unknown_kinds` and `unknown_media` (stores and
    removals in a tier that nobody here knows) are newer than this version."""

    malformed: int = 0
    unknown_kinds: int = 0
    unknown_media: int = 0


class WireAlarm:
    """One engine's. Each thing that can't be read is told once, and counted every time."""

    def __init__(self, counts: WireCounts) -> None:
        self._counts = counts
        self._told: set[str] = set()

    def unreadable(self, seq: int, reason: str) -> None:
        """A whole batch is none."""
        self._tell(
            logging.ERROR,
            reason,
            "message %d can't be read at all (%s): everything held is in doubt. Has the engine changed its "
            "encoding, or is it another engine than the profile names?",
            seq,
        )

    def look(self, batch: EngineBatch) -> None:
        for event in batch.events:
            match event:
                case MalformedEvent():
                    self._counts.malformed += 1
                    self._tell(
                        logging.ERROR,
                        f"{event.kind}: {event.reason}",
                        "message %d has an event that can't be read (%s): what it said is lost. Has the engine "
                        "changed its encoding, or is it another engine than the profile names?",
                        batch.engine_seq,
                    )
                case UnknownEvent():
                    self._counts.unknown_kinds += 1
                    self._tell(
                        logging.WARNING,
                        event.kind,
                        "message %d has an event of a kind that is newer than this version: %s",
                        batch.engine_seq,
                    )
                case (
                    BlockStored(tier=EngineTier.UNKNOWN, medium=str(medium))
                    | BlockRemoved(tier=EngineTier.UNKNOWN, medium=str(medium))
                ):
                    self._counts.unknown_media += 1
                    self._tell(
                        logging.WARNING,
                        f"{medium[:40]!a}",
                        "message %d names a medium that is no tier known here: %s; nothing is claimed of it",
                        batch.engine_seq,
                    )
                case _:
                    pass

    def _tell(self, level: int, what: str, text: str, seq: int) -> None:
        if what not in self._told and len(self._told) < _TOLD_KEPT:
            self._told.add(what)
            LOG.log(level, text, seq, what)
