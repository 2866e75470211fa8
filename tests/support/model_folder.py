"""Folders of models and adapters with a few bytes in them."""

from __future__ import annotations

from pathlib import Path


def make(folder: Path, **files: bytes) -> Path:
    """A folder with these files; `__` in a name stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    return folder


def model(folder: Path, weights: bytes = b"w") -> Path:
    """A model as it is published: weights, configuration, tokenizer with a chat template."""
    return make(
        folder,
        model__safetensors=weights,
        config__json=b'{"rope_theta": 1}',
        tokenizer__json=b"{}",
        tokenizer_config__json=b'{"chat_template": "{{ x }}"}',
        README__md=b"changes nothing",
    )
