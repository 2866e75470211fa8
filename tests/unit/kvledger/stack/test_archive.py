"""Kafka's archives are exactly the ones whose sums are recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvledger.stack import archive


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two archives and a list of sums that holds them."""
    sums = tmp_path / "sums"
    sums.write_text(
        "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824  a.jar\n"
        "486ea46224d1bb4fb680f34f7c9ad96a8f24ec88be73ea8e5a6c65260e9cb8a7  b.jar\n"
    )
    monkeypatch.setattr(archive, "_SUMS", sums)
    (tmp_path / "a.jar").write_text("hello")
    (tmp_path / "b.jar").write_text("world")
    return [tmp_path / "a.jar", tmp_path / "b.jar"]


def test_checked_archives_are_complete_and_make_the_class_path(fetched: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    assert not archive.is_complete(folder)
    archive.install(fetched, folder)
    assert archive.is_complete(folder)
    assert archive.class_path(folder) == f"{folder}/a.jar:{folder}/b.jar"


def test_a_changed_archive_is_refused(fetched: list[Path], tmp_path: Path) -> None:
    fetched[0].write_text("hullo")
    with pytest.raises(ValueError, match=r"a\.jar has another sum"):
        archive.install(fetched, tmp_path / "kept")
    assert not archive.is_complete(tmp_path / "kept")


def test_another_version_is_refused(fetched: list[Path], tmp_path: Path) -> None:
    other = fetched[0].rename(tmp_path / "a-3.9.1.jar")
    with pytest.raises(ValueError, match=r"unexpected archive a-3\.9\.1\.jar"):
        archive.install([other, fetched[1]], tmp_path / "kept")


def test_a_missing_archive_is_refused(fetched: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"b\.jar is missing"):
        archive.install(fetched[:1], tmp_path / "kept")


def test_every_kafka_archive_is_of_the_wanted_version() -> None:
    ours = [name for name in archive.expected_sums() if name.startswith(("kafka", "trogdor"))]
    assert f"kafka-clients-{archive.KAFKA_VERSION}.jar" in ours
    assert all(archive.KAFKA_VERSION in name for name in ours)
