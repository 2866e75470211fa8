"""The museum, whole. Nothing is ever removed from it; `docs/exploits.md` is the catalogue."""

from __future__ import annotations

from tests.museum import absent, handed_over, hidden, locked, log, outlived, told, under_way
from tests.museum.exhibit import HUNG, Exhibit

ROOMS = (absent, locked, outlived, told, under_way, log, hidden, handed_over)
EXHIBITS: list[Exhibit] = [one for room in ROOMS for one in HUNG if one.tell.__module__ == room.__name__]
