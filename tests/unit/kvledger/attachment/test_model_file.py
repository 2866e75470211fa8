"""Digests of a model's files: of what is in them and nothing else."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from kvledger.attachment.model_file import DigestBook, ModelFolderError, read_adapter, read_model
from tests.support.model_folder import make, model


def test_equal_files_are_one_model_wherever_they_lie_and_one_byte_makes_another(tmp_path: Path) -> None:
    one, two = (read_model(model(tmp_path / name), DigestBook()) for name in ("a", "b"))
    other = read_model(model(tmp_path / "c", weights=b"x"), DigestBook())
    assert one.weights == two.weights != other.weights
    assert one.tokenizer == two.tokenizer == other.tokenizer
    make(tmp_path / "b", README__md=b"other", config__json=b'{"rope_theta": 2}')
    changed = read_model(tmp_path / "b", DigestBook())
    assert changed.weights != one.weights
    assert changed.config == {"rope_theta": 2}


def test_a_template_of_its_own_goes_before_the_tokenizers(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    inside = read_model(folder, DigestBook()).chat_template
    assert inside == f"sha256:{hashlib.sha256(b'{{ x }}').hexdigest()}"
    make(folder, chat_template__jinja=b"{{ y }}")
    assert (
        read_model(folder, DigestBook()).chat_template == f"sha256:{hashlib.sha256(b'{{ y }}').hexdigest()}"
    )


def test_a_folder_without_weights_has_no_digest_of_them(tmp_path: Path) -> None:
    found = read_model(make(tmp_path / "m", config__json=b"{}"), DigestBook())
    assert (found.weights, found.tokenizer, found.chat_template, found.processor) == (None, None, None, None)


def test_files_of_the_hugging_face_cache_are_not_read(tmp_path: Path) -> None:
    digest, commit = "ab" * 32, "cd" * 20
    blob = make(tmp_path / "models--o--n" / "blobs", **{digest: b"large"}) / digest
    snapshot = tmp_path / "models--o--n" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    os.symlink(blob, snapshot / "model.safetensors")
    read: list[Path] = []
    book = DigestBook(progress=lambda path, _: read.append(path))
    found = read_model(snapshot, book)
    assert found.commit == commit
    assert read == []
    assert book.of(snapshot / "model.safetensors") == digest


def test_a_large_file_is_read_once_and_again_only_when_it_changed(tmp_path: Path) -> None:
    read: list[str] = []
    folder = model(tmp_path / "m")

    def digest() -> str | None:
        book = DigestBook(tmp_path / "book.json", progress=lambda path, _: read.append(path.name))
        return read_model(folder, book).weights

    first = digest()
    assert "model.safetensors" in read
    read.clear()
    assert digest() == first
    assert read == []
    (folder / "model.safetensors").write_bytes(b"other")
    assert digest() != first
    assert read == ["model.safetensors"]
    (tmp_path / "book.json").write_text("rubbish")
    assert digest() != first


def test_an_adapter_is_its_weights_and_settings(tmp_path: Path) -> None:
    one = make(tmp_path / "one", adapter_model__safetensors=b"a", adapter_config__json=b"{}")
    two = make(tmp_path / "two", adapter_model__safetensors=b"a", adapter_config__json=b'{"r": 8}')
    assert read_adapter(one, DigestBook()) != read_adapter(two, DigestBook())
    assert read_adapter(make(tmp_path / "none", notes__txt=b""), DigestBook()) is None


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="nowhere"):
        read_model(tmp_path / "nowhere", DigestBook())
    with pytest.raises(ModelFolderError, match=r"config\.json is no JSON"):
        read_model(make(tmp_path / "m", config__json=b"{"), DigestBook())
