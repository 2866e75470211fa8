"""What the lookup service is told at its start; whoever composes it reads files and environment."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from events.errors import KvledgerError
from events.ids import Role
from events.kafka.connection import KafkaConnection
from events.keyring import KeyRing
from events.signing import Signer
from indexer.service.connection import ConnectionLimits
from indexer.service.credential import Credentials
from indexer.service.peer import Peer
from indexer.store import Snapshot
from router_client.limit import ViewLimits

LoadSnapshot = Callable[[str], Awaitable[Snapshot]]


class ServiceConfigError(KvledgerError):
    """The service refuses to start like this; the message says what to change."""


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """`reader` names this replica in its beacons and must be its own. `signers` holds the control key if this
    replica may write orders, and the enrolment key if it may have a `canary`.
    `load_snapshot` gives the index of a topic to start from (see
    `indexer.store.Store.snapshot`); without it, or when it fails, a snapshot of one of the `peers` is taken, and
    without any the log is read from its start. `max_snapshots` are given to peers at a time. `proofs` is a folder
    of bundles, each named after its SHA-256."""

    connection: KafkaConnection
    keyring: KeyRing
    reader: str
    host: str = "127.0.0.1"
    port: int = 8400
    credentials: Credentials = field(default_factory=Credentials)
    signers: dict[Role, Signer] = field(default_factory=dict)
    load_snapshot: LoadSnapshot | None = None
    limits: ViewLimits = field(default_factory=ViewLimits)
    max_body_bytes: int = 8 << 20
    max_order_bytes: int = 4 << 20
    max_wait_ms: float = 5_000.0
    max_batch: int = 64
    snapshot_timeout_s: float = 60.0
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    max_watchers: int = 64
    canary: bool = True
    peers: tuple[Peer, ...] = ()
    max_snapshots: int = 2
    proofs: Path | None = None

    def __post_init__(self) -> None:
        if not self.credentials.configured and not is_loopback(self.host):
            raise ServiceConfigError(
                f"{self.host} is reachable from elsewhere: configure credentials, or bind to a loopback address"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
