"""Older versions of a record become the current one before a model sees them: pure dict -> dict, one
function a version step, kept for ever with a golden input each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from events.errors import DecodeError

Step = Callable[[dict[str, Any]], dict[str, Any]]

CURRENT: Mapping[str, int] = {
    "event_batch": 1,
    "pulse": 1,
    "control": 1,
    "quota": 1,
    "audit": 1,
    "access": 1,
    "subject": 1,
    "dead": 1,
}
STEPS: Mapping[tuple[str, int], Step] = {}
"""(family, from version) -> the step to the next version. Version 1 is the first, so there is none yet."""


def upcast(
    family: str,
    document: dict[str, Any],
    *,
    steps: Mapping[tuple[str, int], Step] = STEPS,
    current: Mapping[str, int] = CURRENT,
) -> dict[str, Any]:
    """`document` in the family's current version.

    Raises DecodeError `unknown_version` for a version that is newer than this program's, no number, or
    has no step: the reader is to be upgraded first, the record goes whole to the dead letters.
    """
    version = document.get("v")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= current[family]:
        raise DecodeError("unknown_version", f"{family} {version!r:.40}")
    while version < current[family]:
        step = steps.get((family, version))
        if step is None:
            raise DecodeError("unknown_version", f"{family} {version} has no upcast")
        document = step(document)
        version += 1
    return document
