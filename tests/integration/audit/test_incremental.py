"""`kvledger audit run --incremental` on a real Kafka: the same verdicts, whatever happens to what was kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from auditor.finding import Verdict
from auditor.log import PartitionReader, Take
from kvledger.archiving import archive_log
from kvledger.command.audit import audit_requests
from kvledger.settings import Settings
from tests.integration.audit.test_command import Published, fleet, published

__all__ = ["published"]

EARLIER = "what lies before the newest records was read by an earlier audit of this auditor"


async def test_what_was_kept_saves_reading_and_changes_no_verdict(
    published: Published, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = published.log
    settings = Settings(home=published.home, kafka=published.kafka, topic_prefix=published.prefix)
    first, second, request = fleet(log)
    taken: list[int] = []
    reads = PartitionReader.read_to

    async def counted(reader: PartitionReader, ends: dict[int, int], take: Take) -> None:
        def note(record: object) -> None:
            taken.append(1)
            take(record)  # type: ignore[arg-type]

        await reads(reader, ends, note if reader.topic.endswith("kv.events") else take)

    monkeypatch.setattr(PartitionReader, "read_to", counted)

    async def audit(*, incremental: bool = True, archive: str | None = None) -> tuple[Verdict, bool, int]:
        """The verdict without its line on what was kept, whether it had that, and the records read."""
        taken.clear()
        (found,) = await audit_requests(
            settings, [request], wait_s=0, incremental=incremental, archive=archive
        )
        kept = EARLIER in found.assumptions
        plain = tuple(one for one in found.assumptions if one != EARLIER)
        return found.model_copy(update={"assumptions": plain}), kept, len(taken)

    await published.publish()
    verdict, kept, read = await audit()
    whole = sum(map(len, log.events.values()))
    assert (verdict.kind, kept, read) == ("PENDING", False, whole)
    for hook in (first, second):
        hook.obey(request)
    nonce = log.nonce(request)
    for hook in (first, second):
        hook.ack(request, nonce=nonce)
    await published.publish()
    new = sum(map(len, log.events.values())) - whole
    verdict, kept, read = await audit()
    assert (verdict.kind, kept, read) == ("PROVEN", True, new + 2)
    assert verdict == (await audit(incremental=False))[0]

    (state,) = published.home.glob("audit-state/*/*.state")
    content = state.read_bytes()
    for spoiled in (b"", content[:-1], content[:200] + b"x" + content[201:]):
        state.write_bytes(spoiled)
        again, kept, _ = await audit()
        assert (again, kept) == (verdict, False)
    assert (await audit())[1]
    state.with_suffix(".seen").write_bytes(b"")
    assert (await audit())[0] == verdict

    # Where nothing can be kept, everything is read, and what was judged is written all the same.
    kept_at = published.home / "audit-state"
    kept_at.rename(tmp_path / "away")
    kept_at.write_text("")
    assert (await audit())[:2] == (verdict, False)
    kept_at.unlink()
    (tmp_path / "away").rename(kept_at)
    assert (await audit())[:2] == (verdict, True)
    partial = state.with_name(f".{state.name}.{os.getpid()}")
    partial.mkdir()
    capsys.readouterr()
    assert (await audit())[:2] == (verdict, True)
    assert "can't be kept for the next audit" in capsys.readouterr().err
    partial.rmdir()
    assert (await audit())[:2] == (verdict, True)

    place = str(tmp_path / "archive")
    done = await archive_log(settings, place, write=True, release=True, keep_days=0)
    assert done.released
    again, kept, read = await audit(archive=place)
    assert (again, kept, read) == (verdict, True, 0)
    second.store("acme", 1, admitted=request - 1)
    second.say_state()
    await published.publish()
    refuted, kept, read = await audit(archive=place)
    assert (refuted.kind, kept, read) == ("REFUTED", True, 2)
