"""Apache Kafka's archives: fetched once, checked against our own sums, kept for every later start.

`python -m kvledger.stack.archive FOLDER` fetches them; the supervisor runs it as a child, so that a
fetch can be stopped at any moment. `kafka.sha256` beside this module names every file and its sum.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import ssl
import sys
from pathlib import Path

KAFKA_VERSION = "4.3.1"
# Not log4j-slf4j-impl: its dependency management pulls another kafka-clients into the class path.
_ENDPOINT = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}+org.slf4j:slf4j-simple:1.7.36"
_SUMS = Path(__file__).with_name("kafka.sha256")
_COMPLETE = "complete"
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def default_cache() -> Path:
    """The user's own cache folder; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kvledger"


def archive_folder(cache: Path) -> Path:
    """Where this version's archives are kept below the cache."""
    return cache / f"kafka-{KAFKA_VERSION}"


def expected_sums() -> dict[str, str]:
    """File name to SHA-256 (hex) of every archive that Kafka runs with."""
    return {name: digest for digest, name in (line.split() for line in _SUMS.read_text().splitlines())}


def is_complete(folder: Path) -> bool:
    """Whether a checked set of archives is here; compares names only, so that a start costs nothing."""
    return (folder / _COMPLETE).is_file() and all((folder / name).is_file() for name in expected_sums())


def class_path(folder: Path) -> str:
    """Java's class path: exactly the archives we know, whatever else lies in the folder."""
    return os.pathsep.join(str(folder / name) for name in expected_sums())


def install(archives: list[Path], folder: Path) -> None:
    """Copies the archives into the folder if they are exactly the expected ones; raises ValueError."""
    expected = expected_sums()
    found = {archive.name: archive for archive in archives}
    for name in sorted(found):
        if name not in expected:
            raise ValueError(f"unexpected archive {name}, Kafka {KAFKA_VERSION} was wanted")
    for name, digest in expected.items():
        if name not in found:
            raise ValueError(f"archive {name} is missing")
        if hashlib.sha256(found[name].read_bytes()).hexdigest() != digest:
            raise ValueError(f"archive {name} has another sum than the recorded one")
    folder.mkdir(parents=True, exist_ok=True)
    for name, archive in found.items():
        shutil.copyfile(archive, folder / name)
    (folder / _COMPLETE).touch()


def fetch(folder: Path) -> None:
    """Resolves and installs the archives; idempotent, and safe beside another fetch of the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_complete(folder):
            return
        logging.getLogger("jgo").setLevel(logging.ERROR)
        _trust_the_system()
        import jgo

        environment = jgo.build(endpoint=_ENDPOINT, cache_dir=folder.parent / "jgo")
        install(list(environment.all_jars), folder)


def _trust_the_system() -> None:
    """Lets the fetch trust what this machine trusts; the packaged list knows no company's own authority."""
    for bundle in (ssl.get_default_verify_paths().cafile or "", *_BUNDLES):
        if Path(bundle).is_file():
            os.environ.setdefault("REQUESTS_CA_BUNDLE", bundle)
            return


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
