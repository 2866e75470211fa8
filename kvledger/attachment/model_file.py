"""Digests of a model's or an adapter's files on this machine: what they are, whatever they are called.

A folder of the Hugging Face cache needs no reading: the names of its blobs are the digests of large files.
Others are read once and remembered by size, time and inode.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from events.errors import KvledgerError

WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
"""Suffixes, the preferred first: only files of the first that is there are the weights."""
TOKENIZER = (
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
PROCESSOR = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
CHAT_TEMPLATE = "chat_template.jinja"
_SHA256 = re.compile(r"^[0-9a-f]{64}$")
_COMMIT = re.compile(r"^[0-9a-f]{40}$")
_CHUNK = 1 << 20

Progress = Callable[[Path, int], None]
"""Told of each file that has to be read, and its size in bytes."""


class ModelFolderError(KvledgerError):
    """A folder or file of it can't be read; the message names it."""


class DigestBook:
    """SHA-256 of files, kept in a JSON file so that large ones are read once. Without a path nothing is kept."""

    def __init__(self, path: Path | None = None, progress: Progress = lambda _path, _size: None) -> None:
        self._path = path
        self._progress = progress
        self._known: dict[str, list[Any]] = {}
        if path is not None:
            try:
                document = json.loads(path.read_text())
            except (OSError, ValueError):
                document = {}
            self._known = document if isinstance(document, dict) else {}

    def of(self, path: Path) -> str:
        """Hex digest of a file's bytes. Raises ModelFolderError."""
        target = path.resolve()
        if target.parent.name == "blobs" and _SHA256.match(target.name):
            return target.name
        try:
            found = target.stat()
            stamp = [found.st_size, found.st_mtime_ns, found.st_ino]
            known = self._known.get(str(target))
            if isinstance(known, list) and known[:3] == stamp and len(known) == 4:
                return str(known[3])
            self._progress(path, found.st_size)
            state = hashlib.sha256()
            with target.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    state.update(chunk)
        except OSError as error:
            raise ModelFolderError(f"{path} can't be read: {error.strerror}") from error
        self._known[str(target)] = [*stamp, state.hexdigest()]
        return state.hexdigest()

    def save(self) -> None:
        """Keeps what was learned; a book that can't be written is only slower."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(".new")
            partial.write_text(json.dumps(self._known))
            partial.replace(self._path)
        except OSError:
            return


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a folder is. Digests are `sha256:…`; None: it has no such files. `newest_s`: when the newest of the
    files was written; `commit`: where the folder is a snapshot of the Hugging Face cache."""

    folder: Path
    weights: str | None
    tokenizer: str | None
    chat_template: str | None
    processor: str | None
    config: Mapping[str, Any]
    commit: str | None
    newest_s: float


def read_model(folder: Path, book: DigestBook) -> ModelFiles:
    """Raises ModelFolderError."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise ModelFolderError(f"{folder} can't be read: {error.strerror}") from error
    suffix = next((one for one in WEIGHTS if any(path.suffix == one for path in files)), None)
    weights = [path for path in files if path.suffix == suffix]
    config = next((path for path in files if path.name == "config.json"), None)
    tokenizer = [path for path in files if path.name in TOKENIZER or path.suffix == ".tiktoken"]
    processor = [path for path in files if path.name in PROCESSOR]
    identity = [*weights, *([config] if config else []), *tokenizer, *processor]
    found = ModelFiles(
        folder=folder,
        weights=_digest([*weights, *([config] if config else [])], book) if weights else None,
        tokenizer=_digest(tokenizer, book),
        chat_template=_chat_template(folder),
        processor=_digest(processor, book),
        config=_json(config) if config is not None else {},
        commit=_commit(folder),
        newest_s=max((path.stat().st_mtime for path in identity), default=0.0),
    )
    book.save()
    return found


def read_adapter(folder: Path, book: DigestBook) -> str | None:
    """Digest of an adapter's weights and settings; None if the folder has none. Raises ModelFolderError."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise ModelFolderError(f"{folder} can't be read: {error.strerror}") from error
    weights = [path for path in files if path.suffix in WEIGHTS]
    if not weights:
        return None
    found = _digest([*weights, *(path for path in files if path.name == "adapter_config.json")], book)
    book.save()
    return found


def _digest(files: Iterable[Path], book: DigestBook) -> str | None:
    """Over names and digests in the names' order, so that it doesn't depend on where the folder is."""
    lines = [f"{path.name} {book.of(path)}\n" for path in sorted(files)]
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}" if lines else None


def _chat_template(folder: Path) -> str | None:
    file = folder / CHAT_TEMPLATE
    if file.is_file():
        return f"sha256:{hashlib.sha256(_read(file)).hexdigest()}"
    settings = folder / "tokenizer_config.json"
    template = _json(settings).get("chat_template") if settings.is_file() else None
    if template is None:
        return None
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _commit(folder: Path) -> str | None:
    """`…/models--owner--name/snapshots/<commit>` is what the cache calls a revision."""
    at = folder.absolute()
    in_cache = at.parent.name == "snapshots" and at.parent.parent.name.startswith("models--")
    return at.name if in_cache and _COMMIT.match(at.name) else None


def _json(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(_read(path))
    except ValueError as error:
        raise ModelFolderError(f"{path} is no JSON") from error
    return document if isinstance(document, dict) else {}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelFolderError(f"{path} can't be read: {error.strerror}") from error
