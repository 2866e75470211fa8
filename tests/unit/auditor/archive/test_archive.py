"""An archive holds exactly what was sealed, whenever its writer dies and whatever happens to its files."""

from __future__ import annotations

import asyncio
import io
import json
import multiprocessing
import random
from contextlib import suppress
from pathlib import Path

import pytest

from auditor.archive.check import Checked, check_archive
from auditor.archive.extent import (
    begun_before,
    dropped_unarchived,
    extents,
    releasable,
    retention_danger,
    subjects_extent,
)
from auditor.archive.failure import ArchiveError
from auditor.archive.log_archive import LogArchive, logs_in
from auditor.archive.manifest import name_of, parse_manifest
from auditor.archive.raw import MAGIC, is_sealed, read_records, write_record
from auditor.archive.reader import verified_past
from auditor.archive.store import FsspecStore
from auditor.archive.writer import ArchiveWriter, Written
from events.kafka.connection import RawRecord
from tests.support.audit_log import AuditLog
from tests.support.bundle import AUDITOR, OPERATOR
from tests.support.memory_archive import DyingStore, SealedLog

LOG = "log-test"
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["tests.support.memory_archive", "auditor.archive.writer"])


def made_log(*subjects: tuple[bytes, bytes | None]) -> SealedLog:
    """Two segments of kv.control and of two partitions; kv.subjects, if there is any."""
    sealed = SealedLog(AuditLog(), subjects=list(subjects))
    first, second = sealed.log.hook("w0").open(), sealed.log.hook("w10").open()
    first.store("acme", 1, 2, 3)
    sealed.seal()
    request = sealed.log.delete()
    for hook in (first, second):
        hook.obey(request)
    second.log.events[second.partition].append(type(second.write(signed=True))(b"\xff garbage", None))
    sealed.seal()
    return sealed


def run(sealed: SealedLog, store: FsspecStore) -> Written:
    return asyncio.run(ArchiveWriter(LogArchive(store, LOG), sealed.main(), sealed).run())


def checked(place: Path) -> Checked:
    return check_archive(LogArchive(FsspecStore(str(place)), LOG), OPERATOR.public_key, lambda _: None)


def files(place: Path) -> dict[str, bytes]:
    """Without what a killed process left beside them."""
    found = {str(one.relative_to(place)): one.read_bytes() for one in place.rglob("*") if one.is_file()}
    return {name: content for name, content in found.items() if "/." not in name}


def test_an_archive_is_written_once_and_checks_by_itself(tmp_path: Path) -> None:
    sealed, store = made_log(), FsspecStore(str(tmp_path))
    done = run(sealed, store)
    assert (done.added, done.adopted, done.gone, done.problems) == (6, 0, [], [])
    before = files(tmp_path)
    sealed.asked.clear()
    again = run(sealed, store)
    assert (again.added, sealed.asked, files(tmp_path)) == (0, [], before)
    found = checked(tmp_path)
    assert (found.problems, found.kept, found.records) == ([], 6, len(sealed.records()))
    assert logs_in(store) == [LOG]
    assert not check_archive(LogArchive(store, LOG), AUDITOR.public_key, lambda _: None).problems
    stranger = check_archive(LogArchive(store, LOG), bytes(32), lambda _: None)
    assert [one.partition(":")[0] for one in stranger.problems] == ["archive_foreign"]


def test_raw_files_give_back_exactly_what_was_written() -> None:
    rng = random.Random(5)
    told = [
        RawRecord(
            "kv.events",
            3,
            offset,
            rng.choice((None, b"", b"key")),
            rng.randbytes(rng.choice((0, 1, 90))),
            rng.choice((None, rng.randbytes(64))),
            rng.choice((-1, 1_700_000_000_000)),
        )
        for offset in sorted(rng.sample(range(1 << 62), 60))
    ]
    file = io.BytesIO(MAGIC)
    file.seek(0, io.SEEK_END)
    for record in told:
        write_record(file, record)
    whole = file.getvalue()
    assert list(read_records(io.BytesIO(whole), "kv.events", 3)) == told
    ends = set()
    for cut in range(len(whole)):
        with suppress(ArchiveError):
            ends.add(len(list(read_records(io.BytesIO(whole[:cut]), "kv.events", 3))))
    assert ends == set(range(len(told)))


def test_no_byte_of_an_archive_can_be_changed_unnoticed(tmp_path: Path) -> None:
    sealed = made_log()
    run(sealed, FsspecStore(str(tmp_path)))
    rng, main = random.Random(3), sealed.main()
    archive = LogArchive(FsspecStore(str(tmp_path)), LOG)
    for path in sorted(one for one in tmp_path.rglob("*") if one.is_file()):
        whole = path.read_bytes()
        for at in rng.sample(range(len(whole)), min(2, len(whole))):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
            try:
                problems = checked(tmp_path).problems
            except ArchiveError as error:
                problems = [str(error)]
            assert problems, (path.name, at)
        path.write_bytes(whole)
    for segment in main.segments:
        with archive.records(segment) as told:
            records = list(told)
        assert is_sealed(segment, records)
        for at in range(len(records)):
            assert not is_sealed(segment, records[:at] + records[at + 1 :])
        assert not is_sealed(segment, [*records, *records[:1]])


@pytest.mark.parametrize("when", ["before", "torn", "after"])
def test_a_writer_killed_at_any_write_is_taken_over_where_it_stood(tmp_path: Path, when: str) -> None:
    sealed = small_log()
    run(sealed, FsspecStore(str(tmp_path / "undisturbed")))
    wanted = files(tmp_path / "undisturbed")
    assert len(wanted) == 6
    for step in range(1, len(wanted) + 1):
        place = tmp_path / f"killed-{step}"
        child = FORK.Process(target=_die, args=(str(place), step, when))
        child.start()
        child.join(60)
        assert child.exitcode == -9
        _no_lie(sealed, place)
        if (step, when) == (len(wanted), "torn"):
            with pytest.raises(ArchiveError, match="archive_garbled"):
                run(sealed, FsspecStore(str(place)))
            (place / LOG / "manifest.json").unlink()  # as the message says
        done = run(sealed, FsspecStore(str(place)))
        assert done.added + done.adopted == len(done.manifest.kept) or step == len(wanted)
        assert files(place) == wanted
        assert not checked(place).problems


def small_log() -> SealedLog:
    sealed = SealedLog(AuditLog())
    sealed.log.hook("w0").open().store("acme", 1, 2)
    sealed.seal()
    return sealed


def _die(place: str, step: int, when: str) -> None:
    run(small_log(), DyingStore(place, step, when))


def _no_lie(sealed: SealedLog, place: Path) -> None:
    """Whatever the manifest lists by now can be read and is what was sealed."""
    archive = LogArchive(FsspecStore(str(place)), LOG)
    try:
        manifest, _ = archive.manifest()
    except ArchiveError:
        return
    for one in manifest.kept:
        archive.verify(sealed.main().segments[one.leaf])


def test_what_the_log_dropped_or_changed_is_not_archived_and_is_named(tmp_path: Path) -> None:
    sealed = made_log()
    sealed.log.starts[2] = 1
    done = run(sealed, FsspecStore(str(tmp_path)))
    assert [(one.partition, one.first) for one in done.gone] == [(2, 0)]
    assert dropped_unarchived(done.manifest, asyncio.run(sealed.starts())) == []
    assert begun_before(done.manifest, done.gone) == []  # the archive began behind it
    assert run(sealed, FsspecStore(str(tmp_path))).gone == []  # noted once
    changed = made_log()
    raw = changed.log.events[2][0]
    changed.log.events[2][0] = type(raw)(raw.value.replace(b"test", b"tset", 1), raw.signature)
    done = run(changed, FsspecStore(str(tmp_path / "other")))
    assert ["from 0" in one for one in done.problems] == [True]
    assert releasable(done.manifest, asyncio.run(changed.starts()), 1 << 60) == {3: 4}


def test_only_a_run_without_a_hole_is_released_or_read_before_the_log(tmp_path: Path) -> None:
    sealed, store = made_log(), FsspecStore(str(tmp_path))
    done, starts = run(sealed, store), dict(asyncio.run(sealed.starts()))
    ends = {("kv.events", p): len(told) for p, told in sealed.log.events.items()}
    assert releasable(done.manifest, starts, 1) == {p: end for (_, p), end in ends.items()}
    assert releasable(done.manifest, starts, 0) == {}
    leaf = next(n for n, one in enumerate(done.manifest.segments) if one.topic == "kv.events" and one.first)
    partition = done.manifest.segments[leaf].partition
    holed = done.manifest.model_copy(
        update={"kept": tuple(one for one in done.manifest.kept if one.leaf != leaf)}
    )
    assert releasable(holed, starts, 1)[partition] == done.manifest.segments[leaf].first
    LogArchive(store, LOG).write_manifest(holed)
    gone = {p: end for (_, p), end in ends.items()}
    past = verified_past(LogArchive(store, LOG), sealed.main(), gone, {})
    assert [len(past.runs[p]) for p in sorted(gone)] == [0 if p == partition else 2 for p in sorted(gone)]
    assert len(past.begins) == 1
    where = ("kv.events", partition)
    (lost,) = dropped_unarchived(holed, starts | {where: ends[where]})
    assert begun_before(holed, [lost]) == [name_of(lost)]
    (extent,) = [one for one in extents(holed, starts, ends) if (one.topic, one.partition) == where]
    assert extent.unarchived == ends[where] - done.manifest.segments[leaf].first
    hour = 3_600_000
    assert not retention_danger(extent, 10 * hour, -1, 0, 4 * hour)
    assert "not archived" in retention_danger(extent, 10 * hour, -1, 0, 6 * hour)
    assert not retention_danger(extent, -1, -1, 0, 1_000 * hour)
    assert "bytes" in retention_danger(extent, -1, 1, 0, 1)


def test_another_logs_archive_is_refused(tmp_path: Path) -> None:
    run(made_log(), FsspecStore(str(tmp_path)))
    other = SealedLog(AuditLog())
    other.log.hook("w7").open()
    other.seal()
    archive = LogArchive(FsspecStore(str(tmp_path)), LOG)
    with pytest.raises(ArchiveError, match="archive_foreign"):
        verified_past(archive, other.main(), {0: 1}, {})
    with pytest.raises(ArchiveError, match="archive_foreign"):
        run(other, FsspecStore(str(tmp_path)))
    for raw in (
        b"",
        b"{}",
        b"\xff",
        archive.store.open(f"{LOG}/manifest.json").read().replace(b"1", b"2", 1),
    ):
        with pytest.raises(ArchiveError, match="archive_garbled"):
            parse_manifest(raw)


def test_any_file_system_of_fsspec_takes_an_archive() -> None:
    sealed, store = made_log(), FsspecStore("memory://bucket/folder")
    assert logs_in(store) == []
    assert run(sealed, store).added == 6
    assert logs_in(store) == [LOG]
    assert not check_archive(LogArchive(store, LOG), OPERATOR.public_key, lambda _: None).problems
    assert run(sealed, store).added == 0


def test_a_manifest_from_before_runs_of_kv_subjects_is_read_and_taken_on(tmp_path: Path) -> None:
    sealed, store = made_log((b"{}", None), (b"{}", None)), FsspecStore(str(tmp_path))
    run(sealed, store)
    archive, path = LogArchive(store, LOG), tmp_path / LOG / "manifest.json"
    manifest, _ = archive.manifest()
    assert [(one.segment.first, one.segment.next) for one in manifest.subjects] == [(0, 2), (2, 2)]
    document = json.loads(path.read_bytes())
    for version, subjects in ((2, document["subjects"][0]), (2, None), (1, None)):
        old = document | {"version": version, "subjects": subjects}
        path.write_text(
            json.dumps(old if version == 2 else {k: v for k, v in old.items() if k != "subjects"})
        )
        assert len(archive.manifest()[0].subjects) == (subjects is not None)
        assert checked(tmp_path).problems == []
        run(sealed, store)
        assert archive.manifest()[0] == manifest


def test_a_run_of_kv_subjects_dropped_before_it_was_archived_is_said_until_a_newer_one_is(
    tmp_path: Path,
) -> None:
    sealed, store = made_log((b"{}", None), (b"{}", None)), FsspecStore(str(tmp_path))
    first = run(sealed, store)
    assert (first.gone, first.problems) == ([], [])

    def more(begins: int) -> Written:
        sealed.subjects.append((b"{}", None))
        sealed.log.hooks[0].say_state()
        sealed.seal()
        sealed.subjects_from = begins
        return run(sealed, store)

    done = more(3)  # record 2 was sealed, and was gone when its turn came
    assert ([name_of(one) for one in done.gone], done.problems) == (["kv.subjects/0 from 2 to 3"], [])
    assert begun_before(done.manifest, done.gone) == ["kv.subjects/0 from 2 to 3"]
    assert more(3).gone == done.gone
    again = run(sealed, store)
    assert (again.gone, again.problems) == ([], [])
    assert [(one.segment.first, one.segment.next) for one in again.manifest.subjects] == [(0, 2), (3, 4)]
    assert checked(tmp_path).problems == []
    extent = subjects_extent(again.manifest, range(3, 6))
    assert (extent.archived_from, extent.archived_to, extent.unarchived, extent.sealed_to) == (3, 4, 2, 4)
    assert subjects_extent(again.manifest, range(1, 6)).archived_from == 0
    assert subjects_extent(None, range(1, 6)).unarchived == 5
