"""The manifests say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from kvledger.settings import Settings
from kvledger.stack.archive import KAFKA_VERSION
from kvledger.stack.plan import PROCESSES
from kvledger.stack.postgres import POSTGRES_VERSION

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = (DEPLOY / "compose.yaml").read_text()


def test_the_manifest_runs_the_versions_that_are_tested() -> None:
    assert f"image: apache/kafka:{KAFKA_VERSION}\n" in COMPOSE
    assert f"image: postgres:{POSTGRES_VERSION}\n" in COMPOSE


def test_the_manifest_runs_every_process() -> None:
    assert re.findall(r'    command: \["(\w+)"\]', COMPOSE) == list(PROCESSES)


def test_every_setting_in_the_manifest_exists() -> None:
    named = set(re.findall(r"KVLEDGER_(\w+):", COMPOSE))
    assert {name.lower() for name in named} <= set(Settings.model_fields)


def test_nothing_in_the_manifest_listens_beyond_loopback() -> None:
    assert "0.0.0.0" not in COMPOSE
    assert "ports:" not in COMPOSE
    listeners = re.findall(r"(?:PLAINTEXT|CONTROLLER)://([^:]+):", COMPOSE)
    assert set(listeners) == {"127.0.0.1"}


def test_the_image_does_not_run_as_root_and_holds_every_package() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert "\nUSER kvledger\n" in dockerfile
    copied = set(re.findall(r"^COPY (\w+) \1$", dockerfile, re.MULTILINE))
    assert copied == {"events", "router_client", "indexer", "auditor", "migrations", "kvledger"}
