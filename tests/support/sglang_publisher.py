"""SGLang's own event classes and publisher, without the rest of SGLang.

The wheel named in `sglang.txt` is fetched once, without its dependencies, into the virtual environment; nothing
of it is in this repository. Its packages' `__init__` files would import torch and transformers, so the packages
are entered without running those; the modules themselves are the published ones.
"""

from __future__ import annotations

import atexit
import importlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

VERSION = "0.5.23"
_REQUIREMENT = Path(__file__).with_name("sglang.txt")
_HOME = Path(sys.prefix) / "engine-events" / f"sglang-{VERSION}"
_PACKAGES = ("sglang", "sglang.srt", "sglang.srt.arg_groups", "sglang.srt.disaggregation", "sglang.srt.utils")
# The wheels of all Pythons have the same modules; one hash is enough for all machines.
_WHEEL = ("--platform", "manylinux_2_34_x86_64", "--python-version", "3.11", "--implementation", "cp")
_FETCH_S = 280


def sglang_events() -> ModuleType:
    """`sglang.srt.disaggregation.kv_events` as published. Raises CalledProcessError if it can't be fetched."""
    if not _HOME.exists():
        _fetch()
    for name in _PACKAGES:
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [str(_HOME / name.replace(".", "/"))]
            sys.modules[name] = package
    return importlib.import_module("sglang.srt.disaggregation.kv_events")


def _fetch() -> None:
    _HOME.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_HOME.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--only-binary", ":all:", "--require-hashes", *_WHEEL]
        command += ["--dest", folder, "--requirement", str(_REQUIREMENT)]
        subprocess.run(command, check=True, timeout=_FETCH_S)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.startswith("sglang/srt/")]
            archive.extractall(Path(folder) / "made", [name for name in members if name.endswith(".py")])
        try:
            (Path(folder) / "made").rename(_HOME)
        except OSError:
            # Another test process was faster.
            if not _HOME.exists():
                raise
        shutil.rmtree(Path(folder) / "made", ignore_errors=True)


class SglangPublisher:
    """One rank of an SGLang engine, as far as its event socket: its own publisher on real sockets."""

    def __init__(self, publisher: Any, events: ModuleType) -> None:
        self.events = events
        self._publisher = publisher
        found = publisher.describe_local_source(block_size=1)
        self.endpoint: str = found["endpoint"]
        self.replay_endpoint: str = found["replay_endpoint"]

    def publish(self, *events: object, rank: int | None = None) -> None:
        """One batch, as its scheduler publishes one after a step; the publisher fills in its own rank."""
        self._publisher.publish(self.events.KVEventBatch(ts=1.5, events=list(events), attn_dp_rank=rank))

    def stored(self, hashes: Sequence[int], tokens: Sequence[object], page: int, **fields: Any) -> Any:
        """A BlockStored with the fields that SGLang always gives."""
        always: dict[str, Any] = {"parent_block_hash": None, "lora_id": None, "medium": self.medium("GPU")}
        return self.events.BlockStored(
            block_hashes=list(hashes), token_ids=list(tokens), block_size=page, **(always | fields)
        )

    def removed(self, *hashes: int, medium: str = "GPU") -> Any:
        return self.events.BlockRemoved(block_hashes=list(hashes), medium=self.medium(medium))

    def medium(self, name: str) -> Any:
        """By the name of its member: GPU, CPU, DISK, EXTERNAL."""
        return self.events.StorageMedium[name]


@contextmanager
def sglang_publisher(**settings: Any) -> Iterator[SglangPublisher]:
    """Starts rank 0's publisher on free ports; `settings` are further ones of its own configuration."""
    events = sglang_events()
    publisher = events.ZmqEventPublisher(
        attn_dp_rank=0,
        endpoint="tcp://127.0.0.1:*",
        replay_endpoint="tcp://127.0.0.1:*",
        bind=True,
        **settings,
    )
    try:
        yield SglangPublisher(publisher, events)
    finally:
        publisher.shutdown()
        atexit.unregister(publisher.shutdown)
