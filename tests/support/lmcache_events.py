"""What LMCache 0.5.6's own emitter (`CacheEventSubscriber`, its key and batch classes, its blake3 hasher) wrote
when it was led through a few stores, evictions and a restart. Recorded for this project; the values are made up."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from pathlib import Path

RECORDED = Path(__file__).parent.parent / "golden" / "lmcache" / "events_0.5.6.jsonl.gz"
CHUNK = 32


@dataclass(frozen=True, slots=True)
class Recorded:
    """`prompts` by name; `records` (step, server, body) in order: the steps' names are in the file."""

    prompts: dict[str, list[int]]
    records: list[tuple[str, str, bytes]]

    def upto(self, step: str, server: str = "lmc-0") -> list[bytes]:
        """Bodies of one server from the start to the end of a step."""
        steps = list(dict.fromkeys(name for name, _, _ in self.records))
        wanted = steps[: steps.index(step) + 1]
        return [body for name, of, body in self.records if of == server and name in wanted]


def recorded() -> Recorded:
    """The file's content; a step's records stand before its marker."""
    prompts: dict[str, list[int]] = {}
    records: list[tuple[str, str, bytes]] = []
    waiting: list[tuple[str, bytes]] = []
    with gzip.open(RECORDED, "rt", encoding="utf-8") as file:
        for line in map(json.loads, file):
            if line["kind"] == "record":
                waiting.append((line["key"], base64.b64decode(line["value_b64"])))
            elif line["label"] == "prompts":
                prompts = {name: line[name] for name in ("A", "B", "C")}
            else:
                records.extend((line["label"], server, body) for server, body in waiting)
                waiting.clear()
    return Recorded(prompts, records)
