"""What people keep is whole or as it was, and commands that change one file at once lose nothing."""

from __future__ import annotations

import io
import multiprocessing
import os
import resource
import stat
from pathlib import Path

import pytest

from auditor.archive.failure import ArchiveError
from auditor.archive.store import FsspecStore
from kvledger.command.proof_file import public_key_of
from kvledger.failure import CommandError, ExitCode
from kvledger.keyfile import ensure_domain_secret, load_ring
from kvledger.whole_file import write_whole

CONTEXT = multiprocessing.get_context("spawn")


def _no_room(path: Path) -> None:
    """A process that may write files of a kilobyte: the file system is full for it."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
    with pytest.raises(CommandError, match="can't be written") as refused:
        write_whole(path, b"x" * 100_000)
    assert refused.value.exit_code == ExitCode.CONFIGURATION


@pytest.mark.parametrize("before", [None, b"the last one"])
def test_a_file_for_which_there_is_no_room_is_as_it_was(tmp_path: Path, before: bytes | None) -> None:
    path = tmp_path / "proof.jsonl"
    if before is not None:
        path.write_bytes(before)
    process = CONTEXT.Process(target=_no_room, args=(path,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert [one.name for one in tmp_path.iterdir()] == ([] if before is None else [path.name])
    assert before is None or path.read_bytes() == before


def _no_room_in_the_archive(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
    with pytest.raises(ArchiveError, match="archive_unavailable"):
        FsspecStore(str(folder)).put("log/manifest.json", io.BytesIO(b"x" * 100_000))


def test_an_archive_for_which_there_is_no_room_is_as_it_was(tmp_path: Path) -> None:
    FsspecStore(str(tmp_path)).put("log/manifest.json", io.BytesIO(b"the last one"))
    process = CONTEXT.Process(target=_no_room_in_the_archive, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert [one.read_bytes() for one in (tmp_path / "log").iterdir()] == [b"the last one"]


def test_a_pipe_is_written_to_and_a_link_leads_to_its_file(tmp_path: Path) -> None:
    pipe, file, link = tmp_path / "pipe", tmp_path / "file", tmp_path / "link"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, b"whole")
        assert os.read(end, 100) == b"whole"
    finally:
        os.close(end)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    file.write_bytes(b"before")
    link.symlink_to(file)
    write_whole(link, b"behind")
    assert (link.is_symlink(), file.read_bytes()) == (True, b"behind")


def _add(home: Path, who: int) -> None:
    for one in range(10):
        ensure_domain_secret(home, f"domain-{who}-{one}")


def test_domains_that_are_added_at_once_keep_their_secrets(tmp_path: Path) -> None:
    processes = [CONTEXT.Process(target=_add, args=(tmp_path, who)) for who in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(load_ring(tmp_path)) == 40


@pytest.mark.parametrize("text", ["n" * 300, "n" * 5_000, "/" + "n" * 300, "a" * 300, "a\0b"], ids=len)
def test_a_key_that_is_neither_one_nor_a_files_name_is_wrong_usage(text: str) -> None:
    with pytest.raises(CommandError) as refused:
        public_key_of(text)
    assert refused.value.exit_code == ExitCode.USAGE
    assert len(refused.value.message) < 400
