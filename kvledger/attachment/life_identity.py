"""What an engine's blocks were when its life began, and which of them are void since: kept over a bridge's end.

A bridge that comes back takes the engine's whole history from its replay socket. Blocks from before weights were
changed in place, or an adapter was loaded again, are still in there, and must not be taken for the new ones'.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from kvledger.attachment.plan import Plan
from kvledger.keyfile import write_private

LOG = logging.getLogger(__name__)


class KnownIdentity(BaseModel):
    """As of one engine life. `void`: adapters whose older blocks are void, None for everything's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    life: str
    revision: str | None = None
    adapters: Mapping[str, tuple[str | None, str | None]] = {}
    """Path and revision by name."""
    void: tuple[str | None, ...] = ()


class LifeIdentity:
    """One rank's file. One that can't be read is as if it weren't there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = True
        try:
            self._known: KnownIdentity | None = KnownIdentity.model_validate_json(path.read_text())
        except (OSError, UnicodeDecodeError, ValidationError):
            self._known = None

    def begin(self, life: str, plan: Plan) -> tuple[str | None, ...]:
        """Call it with what the engine is now: returns whose blocks of this life, told so far, are void."""
        known = self._known
        void: set[str | None] = set()
        if known is not None and known.life == life:
            void.update(known.void)
            # A revision that wasn't known then may have been the same.
            if None not in (known.revision, plan.profile.content.revision) and (
                known.revision != plan.profile.content.revision
            ):
                void.add(None)
            now = _adapters(plan)
            void.update(
                name for name in known.adapters.keys() & now.keys() if known.adapters[name] != now[name]
            )
        return self._store(life, plan, void)

    def follow(self, life: str, plan: Plan, void: Iterable[str | None] = ()) -> None:
        """Notes what the engine is now, and whose blocks of the same life have become void."""
        known = self._known
        kept = set(known.void) if known is not None and known.life == life else set()
        self._store(life, plan, kept.union(void))

    def _store(self, life: str, plan: Plan, void: set[str | None]) -> tuple[str | None, ...]:
        ordered = tuple(sorted(void, key=lambda name: (name is not None, name or "")))
        now = KnownIdentity(
            life=life, revision=plan.profile.content.revision, adapters=_adapters(plan), void=ordered
        )
        if now != self._known or not self._written:
            self._known, written = now, self._written
            try:
                write_private(self._path, json.dumps(now.model_dump(mode="json")) + "\n")
                self._written = True
            except OSError as error:
                self._written = False
                if written:
                    LOG.error(
                        "%s can't be written: %s. A bridge that is started again takes void blocks for good "
                        "ones until it can; it is tried again",
                        self._path,
                        error.strerror or error,
                    )
        return ordered


def _adapters(plan: Plan) -> dict[str, tuple[str | None, str | None]]:
    return {name: (path, plan.profile.adapters.get(name)) for name, path in plan.report.adapters.items()}
