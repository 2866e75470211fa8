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
from kvledger.failure import CommandError, ExitCode
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
        try:
            self._known: KnownIdentity | None = KnownIdentity.model_validate_json(path.read_text())
        except (OSError, UnicodeDecodeError, ValidationError):
            self._known = None
        self._kept = self._known
        self._told = False

    def begin(self, life: str, plan: Plan) -> tuple[str | None, ...]:
        """Call it with what the engine is now: returns whose blocks of this life, told so far, are void.

        Raises CommandError if it can't be kept: whoever comes after this process would take void blocks for
        good ones.
        """
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
        ordered = self._note(life, plan, void)
        try:
            self._keep()
        except OSError as error:
            raise CommandError(
                f"{self._path} can't be written ({error.strerror or type(error).__name__})",
                advice="KVLEDGER_HOME must be a folder with room that the bridge may write to",
                exit_code=ExitCode.CONFIGURATION,
            ) from error
        return ordered

    def follow(self, life: str, plan: Plan, void: Iterable[str | None] = ()) -> None:
        """Notes what the engine is now, and whose blocks of the same life have become void. What can't be kept is
        tried again with the next call."""
        known = self._known
        kept = set(known.void) if known is not None and known.life == life else set()
        self._note(life, plan, kept.union(void))
        try:
            self._keep()
        except OSError as error:
            if not self._told:
                LOG.error(
                    "%s can't be written (%s): make room, or a bridge that is started again may not know which "
                    "blocks are void",
                    self._path,
                    error.strerror or type(error).__name__,
                )
            self._told = True

    def _note(self, life: str, plan: Plan, void: set[str | None]) -> tuple[str | None, ...]:
        ordered = tuple(sorted(void, key=lambda name: (name is not None, name or "")))
        self._known = KnownIdentity(
            life=life, revision=plan.profile.content.revision, adapters=_adapters(plan), void=ordered
        )
        return ordered

    def _keep(self) -> None:
        known = self._known
        if known is not None and known != self._kept:
            write_private(self._path, json.dumps(known.model_dump(mode="json")) + "\n")
            self._kept, self._told = known, False


def _adapters(plan: Plan) -> dict[str, tuple[str | None, str | None]]:
    return {name: (path, plan.profile.adapters.get(name)) for name, path in plan.report.adapters.items()}
