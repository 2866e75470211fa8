"""What the supervisor writes down about its stack, and where everything of a home lies."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from kvledger.stack.process import ProcessId


class Phase(StrEnum):
    """How far the whole stack is."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"


class ServiceState(StrEnum):
    """How one service is."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    EXTERNAL = "external"


class Endpoints(BaseModel):
    """The addresses of a running stack. `database_url` holds a password: never print or log it."""

    model_config = ConfigDict(frozen=True)

    home: Path
    kafka: str = ""
    database_url: str = ""
    lookup_url: str = ""
    lookup_port: int = 0


class ServiceRecord(BaseModel):
    """One service as last seen by the supervisor."""

    model_config = ConfigDict(frozen=True)

    name: str
    state: ServiceState
    address: str = ""
    log: Path | None = None
    process: ProcessId | None = None
    restarts: int = 0
    last_exit: str = ""


class StackState(BaseModel):
    """The file `state.json` of a home."""

    model_config = ConfigDict(frozen=True)

    phase: Phase
    supervisor: ProcessId
    endpoints: Endpoints
    services: tuple[ServiceRecord, ...] = ()


class Home:
    """The folder of all local state; knows the place of each thing in it."""

    FORMAT = "1"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marker = path / "format"
        self.lock = path / "lock"
        self.state = path / "state.json"
        self.logs = path / "log"
        self.kafka = path / "kafka"
        self.postgres = path / "postgres"

    def log(self, name: str) -> Path:
        """The log file of a service, step or the supervisor."""
        return self.logs / f"{name}.log"

    def read_state(self) -> StackState | None:
        """The last written state, None if there is none or it can't be read."""
        try:
            return StackState.model_validate_json(self.state.read_bytes())
        except (OSError, ValidationError):
            return None

    def write_state(self, state: StackState) -> None:
        """Replaces the state in one step; readable by its owner only, for it holds the database's URL."""
        draft = self.state.with_suffix(".new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(state.model_dump(mode="json"), file, indent=1)
        draft.replace(self.state)
