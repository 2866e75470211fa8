"""`kvledger serve`: one replica of the lookup service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from kvledger.failure import CommandError, ExitCode
from kvledger.settings import Settings, load_settings

if TYPE_CHECKING:
    from indexer.service.config import ServiceConfig
    from indexer.service.peer import Peer

CREDENTIALS = "credentials.json"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("serve")(serve)


def serve(
    host: Annotated[str, typer.Option(help="Address; others than loopback need credentials.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="Port; default: the lookup_port setting.")] = None,
    credentials: Annotated[
        Path | None,
        typer.Option(
            help="Bearer tokens (hashed), a file that must exist; default: credentials.json below the home "
            "folder, if it is there."
        ),
    ] = None,
    replica: Annotated[
        str | None, typer.Option(help="Name in this replica's beacons; default: made up.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="URL of another replica to start from where PostgreSQL can't be used; repeatable."),
    ] = None,
    peer_token_file: Annotated[
        Path | None, typer.Option(help="File with the bearer token that the peers want.")
    ] = None,
    canary: Annotated[
        bool,
        typer.Option(
            "--canary/--no-canary",
            help="Measure this replica's staleness all the time with a stream of its own; needs the enrolment "
            "key below the home folder.",
        ),
    ] = True,
) -> None:
    """Answer lookups over REST from memory, kept up to date from Kafka.

    Starts from PostgreSQL's snapshot of the index if there is one, else from a peer's, else from the log's
    start; neither is asked again. SIGTERM or Ctrl-C stops it in order.

    Example: kvledger serve --port 8400
    """
    import logging

    from events.errors import IdentityError, KvledgerError
    from indexer.service.credential import CredentialError
    from indexer.service.server import AddressTakenError, FeedFailedError, run

    settings = load_settings()
    try:
        config = make_config(
            settings, host=host, port=settings.lookup_port if port is None else port,
            credentials=credentials, replica=replica, canary=canary,
            peers=read_peers(peer or (), peer_token_file),
        )  # fmt: skip
    except CredentialError as error:
        raise CommandError(
            str(error),
            advice="mend the file, or name another with --credentials",
            exit_code=ExitCode.CONFIGURATION,
        ) from error
    except IdentityError as error:
        raise CommandError(
            str(error),
            advice="`kvledger up` makes one; KVLEDGER_HOME names the folder",
            exit_code=ExitCode.CONFIGURATION,
        ) from error
    # What a broker's absence means is said once by the service itself.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        asyncio.run(run(config))
    except AddressTakenError as error:
        raise CommandError(
            str(error), advice="stop what listens there, or give --port", exit_code=ExitCode.UNAVAILABLE
        ) from error
    except FeedFailedError as error:
        raise CommandError(str(error), advice="see the log above", exit_code=ExitCode.FAILED) from error
    except KvledgerError as error:
        raise CommandError(str(error)) from error


def read_peers(urls: Iterable[str], token_file: Path | None) -> tuple[Peer, ...]:
    """The replicas to start from. Raises CommandError for an address or a file that can't be used."""
    from indexer.service.peer import Peer

    token = None
    if token_file is not None:
        try:
            token = token_file.read_text().strip()
        except (OSError, ValueError) as error:
            raise CommandError(
                f"{token_file} can't be read ({type(error).__name__})",
                advice="name a file that holds one bearer token",
                exit_code=ExitCode.CONFIGURATION,
            ) from error
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CommandError(
                f"--peer {url!r} is no http:// or https:// address",
                advice="give http://host:port of another replica",
                exit_code=ExitCode.CONFIGURATION,
            )
    return tuple(Peer(url.rstrip("/"), token) for url in urls)


def make_config(
    settings: Settings,
    *,
    host: str,
    port: int,
    credentials: Path | None,
    replica: str | None,
    canary: bool = True,
    peers: tuple[Peer, ...] = (),
) -> ServiceConfig:
    """What the service is told, from the settings and the files below the home folder."""
    import secrets

    from events.ids import Role
    from indexer.postgres_store import PostgresStore
    from indexer.service.config import ServiceConfig, ServiceConfigError
    from indexer.service.credential import load_credentials
    from indexer.store import Snapshot
    from kvledger.control import connection
    from kvledger.keyfile import PROOFS, KeyFileError, load_ring, load_signer

    signers = {}
    for role in (Role.CONTROL, Role.ENROLMENT):
        with contextlib.suppress(KeyFileError):
            signers[role] = load_signer(settings.home, role)
    keyring = load_ring(settings.home)

    url = settings.database_url

    async def snapshot(topic: str) -> Snapshot:
        store = PostgresStore(
            url.get_secret_value() if url else "",
            keyring=keyring,
            name="kvledger serve",
        )
        try:
            return await store.snapshot(topic)
        finally:
            await store.close()

    try:
        return ServiceConfig(
            connection=connection(settings),
            keyring=keyring,
            reader=replica or f"lookup-{secrets.token_hex(4)}",
            host=host,
            port=port,
            credentials=load_credentials(
                credentials or settings.home / CREDENTIALS, required=credentials is not None
            ),
            signers=signers,
            load_snapshot=snapshot if url is not None else None,
            canary=canary,
            peers=peers,
            proofs=settings.home / PROOFS,
        )
    except ServiceConfigError as error:
        raise CommandError(
            str(error), advice="`--credentials FILE`, or `--host 127.0.0.1`", exit_code=ExitCode.CONFIGURATION
        ) from error
