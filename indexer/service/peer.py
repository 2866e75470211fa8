"""Starting from another replica's `/v1/snapshot`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from events.fold.registry import Registry
from indexer.service.snapshot import SnapshotRefusedError, read_snapshot
from indexer.store import Snapshot

LOG = logging.getLogger(__name__)
PATH = "/v1/snapshot"
CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Peer:
    """Another replica: its URL, and a bearer token of an operator or of a router for every domain."""

    url: str
    token: str | None = None


async def load_from_peers(
    peers: Sequence[Peer], registry: Registry, topic: str, *, max_copies: int
) -> Snapshot:
    """The first usable snapshot, asking one peer after the other. Raises SnapshotRefusedError if none has one."""
    for peer in peers:
        headers = {"Authorization": f"Bearer {peer.token}"} if peer.token else {}
        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        try:
            async with (
                httpx.AsyncClient(
                    base_url=peer.url, headers=headers, timeout=timeout, trust_env=False
                ) as http,
                http.stream("GET", PATH) as response,
            ):
                if response.status_code != 200:
                    raise SnapshotRefusedError(f"the peer answers {response.status_code}")
                return await read_snapshot(response.aiter_bytes(), registry, topic, max_copies=max_copies)
        except (httpx.HTTPError, httpx.InvalidURL, SnapshotRefusedError) as error:
            why = error.reason if isinstance(error, SnapshotRefusedError) else type(error).__name__
            LOG.warning("no snapshot from a peer: %s", why, extra={"action": "peer_snapshot_refused"})
    raise SnapshotRefusedError("no peer has a usable one")
