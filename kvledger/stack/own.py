"""What a program needs that runs a stack of its own: settings that meet nobody else's, and its log beside theirs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from kvledger.settings import Settings
from kvledger.stack.state import Endpoints, Home

FREE_PORTS: Mapping[str, object] = {
    "kafka_port": 0,
    "kafka_controller_port": 0,
    "postgres_port": 0,
    "lookup_port": 0,
    "postgres_fsync": False,
}
"""Of a stack that is gone after the run: any free ports, and nothing that guards against a power cut."""
ALL_OWN: Mapping[str, object] = {**FREE_PORTS, "kafka": None, "database_url": None}
"""The same, with none of the services that the settings name outside."""


def in_force(settings: Settings, at: Endpoints) -> Settings:
    """The settings with the addresses that the running stack was given."""
    return settings.model_copy(
        update={
            "kafka": at.kafka,
            "database_url": SecretStr(at.database_url),
            "lookup_port": at.lookup_port,
        }
    )


def log_to_file(home: Path, name: str) -> None:
    """Warnings of this process go where those of the stack's others are, and not to the terminal."""
    path = Home(home).log(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=path, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
