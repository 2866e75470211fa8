"""Salts from the command line to the log: made ones and bound ones name their domain, all others nobody's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from events.ids import Tier
from tests.support.attached import attached, make_keys, settings_of
from tests.support.command import failure, kvledger
from tests.support.fake_engine import FakeEngine
from tests.support.hook_log import HookLog, until


@pytest.fixture
async def log(kafka: str, topic_prefix: str) -> AsyncIterator[HookLog]:
    async with HookLog(kafka, topic_prefix) as entered:
        yield entered


async def test_a_gateways_salts_name_domains_and_a_strangers_blocks_have_no_id(
    log: HookLog, home: Path, tmp_path: Path
) -> None:
    make_keys(home)
    own, other = tmp_path / "own", tmp_path / "other"
    own.write_text("gateway's own\n")
    other.write_text("a stranger's\n")

    async def domain(*arguments: str) -> CompletedProcess[str]:
        return await asyncio.to_thread(kvledger, "domain", *arguments, home=home, env=settings_of(log))

    made = (await domain("salt", "beta")).stdout.strip()
    async with FakeEngine(http_port=0) as engine, attached(log, home, engine.http_url) as running:
        worker = (await running.opened())["worker"]
        done = await domain("bind", "acme", "--salt-file", str(own), "--json")
        number = json.loads(done.stdout)["number"]
        await until(lambda: log.registry.next_offset > number)
        assert b"gateway" not in b"".join(record.value for record in log.records)
        assert "already" in (await domain("bind", "acme", "--salt-file", str(own))).stdout
        assert "names acme already" in failure(await domain("bind", "beta", "--salt-file", str(own)))
        assert (await domain("whose", "--salt-file", str(own))).stdout.strip() == "acme"
        nobodys = await domain("whose", "--salt-file", str(other))
        assert (nobodys.returncode, nobodys.stdout.startswith("nobody's")) == (1, True)
        for salt in ("gateway's own", made, "a stranger's", made[:-1] + ("0" if made[-1] != "0" else "1")):
            await engine.complete([7] * 32, salt=salt)
        await engine.complete([7] * 32)

        def domains() -> dict[str | None, int]:
            state = log.current(worker)
            assert state is not None
            aliases = log.keyring.aliases(worker, 0, state.epoch_no)
            found: dict[str | None, int] = {}
            for (alias, tier), usage in state.usage.items():
                assert tier is Tier.GPU
                found[aliases.get(alias)] = usage.blocks
            return found

        await until(lambda: log.current(worker) is not None and len(domains()) == 3)
        assert domains() == {"acme": 2, "beta": 2, "default": 2}
        await until(lambda: log.current(worker).holders["gpu"].unassigned == 4)  # type: ignore[union-attr]
        assert len(log.copies(worker)) == 6


async def test_what_is_no_salt_or_no_domain_is_refused(log: HookLog, home: Path, tmp_path: Path) -> None:
    make_keys(home)
    file = tmp_path / "salt"
    for text, domain, word in (
        ("", "acme", "one line"),
        ("two\nlines", "acme", "one line"),
        ("fine", "nowhere", "no domain nowhere"),
        ("kvl1.acme.00", "acme", "kvledger's own"),
    ):
        file.write_text(text)
        done = await asyncio.to_thread(
            kvledger, "domain", "bind", domain, "--salt-file", str(file), home=home, env=settings_of(log)
        )
        assert word in failure(done)
