"""Server-sent events as a client reads them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event of `/v1/watch`. `name` says what `data` holds; ignore names that you don't know."""

    name: str
    data: dict[str, Any]
    id: str | None


async def events_of(lines: AsyncIterator[str]) -> AsyncIterator[WatchEvent]:
    """The events in a body's lines. Comments are skipped; an event that isn't whole at the end is dropped, and
    so is one whose data is no JSON object."""
    name, known = "message", None
    text: list[str] = []
    async for line in lines:
        if line:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                text.append(value)
            elif field == "id":
                known = value
            continue
        if text:
            try:
                data = json.loads("\n".join(text))
            except ValueError:
                data = None
            if isinstance(data, dict):
                yield WatchEvent(name, data, known)
        name, text = "message", []
