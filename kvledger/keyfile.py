"""Where a stack keeps its keys, and reading them: `keys/<role>.key` and `keyring.json` below the home folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from events.errors import SignatureError
from events.ids import Role
from events.keyring import KeyRing, load_keyring, with_domain
from events.signing import Signer
from kvledger.failure import CommandError, ExitCode
from kvledger.whole_file import put

DEFAULT_DOMAIN = "default"
DEFAULT_TENANT = "default"
RING = "keyring.json"
PROOFS = "proofs"
"""Folder of bundles below the home folder, each named after its SHA-256."""


class KeyFileError(CommandError):
    """A key or ring can't be read or written; `kvledger up` makes them, or the settings must name another home."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            advice="`kvledger up` makes keys for a local stack; KVLEDGER_HOME names where they are",
            exit_code=ExitCode.CONFIGURATION,
        )


def key_path(home: Path, role: Role) -> Path:
    return home / "keys" / f"{role.value}.key"


def ring_path(home: Path) -> Path:
    return home / RING


def write_private(path: Path, text: str) -> None:
    """Replaces a file that only its owner may read, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    put(path, text.encode(), mode=0o600)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes of this machine from changing a file meanwhile; they wait."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = path.with_name(f".{path.name}.lock")
    with os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT, 0o600), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def load_signer(home: Path, role: Role) -> Signer:
    """The key that acts under `role`. Raises KeyFileError, which names the file and never its content."""
    path = key_path(home, role)
    try:
        return Signer.from_seed(bytes.fromhex(path.read_text().strip()))
    except (OSError, ValueError, SignatureError) as error:
        raise KeyFileError(f"the {role.value} key {path} can't be read ({type(error).__name__})") from error


def load_signers(home: Path, *roles: Role) -> dict[Role, Signer]:
    return {role: load_signer(home, role) for role in roles}


def load_ring(home: Path) -> KeyRing:
    """Raises IdentityError if the ring can't be read."""
    return load_keyring(ring_path(home))


def public_key_path(home: Path, role: Role) -> Path:
    """The half that may be given to anybody, for example to whoever verifies a proof."""
    return key_path(home, role).with_suffix(".pub")


def ensure_key(home: Path, role: Role) -> None:
    """Makes a role's key unless there is one, and its public half beside it. Who does so at the same time waits: a
    key that has signed something and is then replaced is lost."""
    path, public = key_path(home, role), public_key_path(home, role)
    if path.exists() and public.exists():
        return  # also where nothing may be written
    with locked(path):
        if not path.exists():
            write_private(path, secrets.token_bytes(32).hex() + "\n")
        if not public.exists():
            write_private(public, load_signer(home, role).public_key.hex() + "\n")


def ensure_domain_secret(home: Path, domain: str) -> None:
    """Gives a domain a secret unless it has one. Commands that do so at the same time wait for each other: a secret
    that is lost can't be made again."""
    path = ring_path(home)
    with locked(path):
        document = path.read_text() if path.exists() else ""
        changed = with_domain(document, domain, secrets.token_bytes(32))
        if changed != document:
            write_private(path, changed)


def read_key(path: Path | None) -> str | None:
    """The key in a file; raises CommandError naming the file and never the key."""
    if path is None:
        return None
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"the API key file {path} can't be read", exit_code=ExitCode.CONFIGURATION
        ) from error
    if not key or not key.isascii() or not key.isprintable():
        raise CommandError(f"the API key file {path} holds no key", exit_code=ExitCode.CONFIGURATION)
    return key


def keep_proof(home: Path, bundle: bytes) -> None:
    """Keeps a bundle under its SHA-256, where `kvledger serve` gives it to who may have it."""
    write_private(home / PROOFS / f"{hashlib.sha256(bundle).hexdigest()}.jsonl", bundle.decode())
