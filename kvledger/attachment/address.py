"""Where a bridge reaches the sockets that an engine says it has: `*` means the engine's host to anybody else.

vLLM binds a publisher's address that holds `*` or `::`, and ipc; any other it connects, to a subscriber that
binds (vLLM 0.32.0, distributed/kv_events.py). But `tcp://*:0` is told as the address that it was bound to, so
for a concrete address only asking shows which of the two it is.
"""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from events.errors import KvledgerError

if TYPE_CHECKING:
    from kvledger.attachment.report import EventSource

CONNECT_S = 2.0


class SourceUnreachableError(KvledgerError):
    """No bridge can get at this publisher; `advice` says what the engine is to be started with."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


@dataclass(frozen=True, slots=True)
class RankAddress:
    """One rank's sockets as its bridge uses them. `binds`: the engine connects to us."""

    rank: int
    endpoint: str
    replay: str | None
    topic: str
    binds: bool = False


def host_of(url: str) -> str:
    """The engine's host, IPv6 in brackets, as it stands in a socket's address."""
    host = urlsplit(url).hostname or "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def is_local(url: str) -> bool:
    """Whether the engine runs on this machine for sure: its address is a loopback one."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def resolve(url: str, rank: int, source: EventSource) -> RankAddress:
    """Raises SourceUnreachableError."""
    host = host_of(url)
    replay = None if source.replay_endpoint is None else _reach(source.replay_endpoint, host, url, rank)
    endpoint = _reach(source.endpoint, host, url, rank)
    if endpoint != source.endpoint or endpoint.startswith("ipc:") or await is_listening(endpoint):
        return RankAddress(rank, endpoint, replay, source.topic)
    # Nobody listens where it says: it is the one that connects.
    at, _, port = source.endpoint.removeprefix("tcp://").rpartition(":")
    if not is_local(f"tcp://{at}:{port}") and at != "0.0.0.0":  # noqa: S104
        raise SourceUnreachableError(
            f"rank {rank} publishes to {source.endpoint}, where nothing listens and which is not this machine",
            'start vLLM with "endpoint": "tcp://*:5557", or run kvledger where it publishes to',
        )
    return RankAddress(rank, f"tcp://*:{port}", replay, source.topic, binds=True)


def given(url: str, rank: int, events: str, replay: str | None, topic: str) -> RankAddress:
    """What a person passed, for an older engine: the ports of rank 0, the others' follow as vLLM counts them.

    Raises SourceUnreachableError for an address that doesn't end with a port.
    """
    host = host_of(url)
    shifted = (None if one is None else _shift(one, rank) for one in (events, replay))
    endpoint, replay = (None if one is None else _reach(one, host, url, rank) for one in shifted)
    assert endpoint is not None
    return RankAddress(rank, endpoint, replay, topic)


def is_socket(address: str) -> bool:
    """Whether a ZMQ socket could connect to the address; `*` is for the engine's side only."""
    scheme, _, rest = address.partition("://")
    if scheme == "ipc":
        return bool(rest)
    host, _, port = rest.rpartition(":")
    return (
        scheme == "tcp"
        and host not in ("", "*")
        and port.isascii()
        and port.isdigit()
        and len(port) <= 5
        and 0 < int(port) < 65_536
    )


async def is_listening(endpoint: str) -> bool:
    """Whether somebody takes TCP connections at `tcp://host:port`."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True


def _shift(address: str, rank: int) -> str:
    head, _, port = address.rpartition(":")
    if rank == 0 or address.startswith("ipc:"):
        return address
    if not (port.isascii() and port.isdigit()):
        raise SourceUnreachableError(f"{address!r} does not end with a port", "pass tcp://host:port")
    return f"{head}:{int(port) + rank}"


def _reach(address: str, host: str, url: str, rank: int) -> str:
    if address.startswith("inproc:"):
        raise SourceUnreachableError(
            f"rank {rank} publishes inside its own process only ({address})",
            'start vLLM with "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"',
        )
    if address.startswith("ipc:"):
        if not is_local(url):
            raise SourceUnreachableError(
                f"rank {rank} publishes on {address}, which only its own machine can reach",
                "run kvledger attach there, or give the engine a tcp:// endpoint",
            )
        return address
    head, _, port = address.rpartition(":")
    reached = f"tcp://{host}:{port}" if "*" in head or "::" in head else address
    if not is_socket(reached):
        raise SourceUnreachableError(
            f"rank {rank} says that it publishes at {address!r}, which is no address",
            'start vLLM with "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"',
        )
    return reached
