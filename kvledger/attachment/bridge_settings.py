"""What a running bridge was told of its engine, left for whoever has to find out why nothing comes of it."""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from events.model.profile import ContentProfile
from kvledger.keyfile import write_private

LOG = logging.getLogger(__name__)

SUFFIX = ".settings.json"


class BridgeSettings(BaseModel):
    """One rank's. `url`: the engine's HTTP server, where the bridge knows it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    worker: str
    rank: int
    model: str
    domain: str
    endpoint: str
    replay: str | None
    topic: str
    url: str | None
    hash_algorithm: str | None
    content: ContentProfile


def leave(path: Path, settings: BridgeSettings) -> None:
    """Replaces the file. Where that can't be done, a doctor knows less: no reason not to run."""
    try:
        write_private(path, settings.model_dump_json() + "\n")
    except OSError as error:
        LOG.warning("%s can't be written: %s", path, error.strerror or type(error).__name__)


def read_all(home: Path) -> list[BridgeSettings]:
    """Of every bridge that ran with this home; files that can't be read are left out."""
    found: list[BridgeSettings] = []
    for path in sorted((home / "bridge").glob(f"*{SUFFIX}")):
        try:
            found.append(BridgeSettings.model_validate_json(path.read_text()))
        except (OSError, UnicodeDecodeError, ValidationError):
            continue
    return found
