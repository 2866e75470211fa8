"""Files that the proving commands are given: bundles, reports and public keys."""

from __future__ import annotations

from pathlib import Path
from string import hexdigits

from kvledger.failure import CommandError, ExitCode


def read_file(path: Path) -> bytes:
    """A bundle's or report's bytes. Raises CommandError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(
            f"{path} can't be read: {error.strerror}",
            advice="name a bundle or a report, as `kvledger audit run --bundle` and `kvledger audit report` write them",
            exit_code=ExitCode.USAGE,
        ) from error


def public_key_of(text: str, option: str = "--key", command: str = "audit") -> bytes:
    """A public key given as hex or as a file that holds it in hex. Raises CommandError naming the option, and the
    help of the command that has it."""

    def wrong(message: str) -> CommandError:
        advice = f"kvledger {command} --help"
        return CommandError(f"{option}{message}", advice=advice, exit_code=ExitCode.USAGE)

    path = Path(text)
    try:
        # Longer than any file's name may be is an error of its own.
        is_file, exists = path.is_file(), path.exists()
    except OSError:
        is_file = exists = False
    if not exists and not all(sign in hexdigits for sign in text.strip()):
        named = text if len(text) <= 200 else f"{text[:200]}…"
        raise wrong(f": there is no file {named}; give a file's path or 64 hexadecimal characters")
    try:
        content = path.read_text() if is_file else text
        raw = bytes.fromhex(content.strip())
    except (OSError, ValueError) as error:
        raise wrong(" takes 64 hexadecimal characters, or a file that holds them") from error
    if len(raw) != 32:
        raise wrong(" takes a public key of 32 bytes in hexadecimal")
    return raw
