"""Reads the recorded vLLM streams in `tests/golden/captures`."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).parent.parent / "golden" / "captures"


@dataclass(frozen=True, slots=True)
class CapturedMessage:
    """One message in arrival order; `channel` is "pub" or "replay", `source` the socket it came by."""

    channel: str
    source: str
    topic: str
    seq: int
    payload: bytes


def load_capture(name: str) -> list[CapturedMessage]:
    """All messages of the capture whose file name begins with `name`, in arrival order."""
    return [
        _by_kafka(line) if "offset" in line else _by_socket(line)
        for line in load_lines(name)
        if "offset" in line or line.get("kind") == "message"
    ]


def _by_socket(line: dict[str, Any]) -> CapturedMessage:
    payload = base64.b64decode(line["payload_b64"])
    return CapturedMessage(line["channel"], line["source"], line["topic"], line["seq"], payload)


def _by_kafka(line: dict[str, Any]) -> CapturedMessage:
    """A publisher in the engine's process that wrote to Kafka: its number is a header, its rank in the key."""
    payload = base64.b64decode(line["payload_b64"])
    return CapturedMessage("pub", line["key"], line["topic"], int(line["headers"]["seq"]), payload)


def load_lines(name: str) -> list[dict[str, Any]]:
    """All lines of the capture, the driver's markers (requests, admin calls) among them."""
    (path,) = CAPTURES.glob(f"{name}*.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
