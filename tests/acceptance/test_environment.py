"""`make` on a machine whose Python doesn't do says what to install."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what `.ci/venv` reads, and a `bin` with no Python in it."""
    (tmp_path / ".ci").mkdir()
    for name in (".ci/venv", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for name in ("cat", "cksum", "rm", "sh"):
        program = shutil.which(name)
        assert program is not None
        (tmp_path / "bin" / name).symlink_to(program)
    return tmp_path


def python(clone: Path, script: str) -> None:
    file = clone / "bin" / "python3"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def make_venv(clone: Path) -> str:
    done = subprocess.run(
        [str(clone / "bin" / "sh"), ".ci/venv", ".venv"],
        cwd=clone,
        env={"PATH": str(clone / "bin")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr


def test_a_missing_python_is_named(clone: Path) -> None:
    assert "found no Python 3.11, 3.12 or 3.13" in make_venv(clone)


def test_an_older_python_is_named_with_its_version(clone: Path) -> None:
    python(clone, 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac')
    assert "python3 is Python 3.9.2" in make_venv(clone)


def test_a_python_without_venv_is_named_with_the_package(clone: Path) -> None:
    python(clone, 'case "$2" in *ensurepip*) exit 1;; *) exit 0;; esac')
    assert "python3-venv" in make_venv(clone)


def test_packages_that_cannot_be_installed_are_explained(clone: Path) -> None:
    python(
        clone,
        'case "$*" in *"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python;; '
        '*"-m pip"*) exit 1;; *) exit 0;; esac',
    )
    for name in ("mkdir", "cp"):
        program = shutil.which(name)
        assert program is not None
        (clone / "bin" / name).symlink_to(program)
    assert "could not be installed; this needs a network" in make_venv(clone)
    assert not (clone / ".venv" / "installed").exists()
