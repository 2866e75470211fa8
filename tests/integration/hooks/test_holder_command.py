"""`kvledger holder` against a real log: what it writes is obeyed, and what would not be is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from events.chain import sha256
from events.ids import Role
from kvledger.keyfile import key_path, write_private
from tests.support.command import failure, kvledger
from tests.support.hook_log import HookLog


async def test_an_enrolment_is_written_once_and_listed(kafka: str, topic_prefix: str, home: Path) -> None:
    write_private(key_path(home, Role.ENROLMENT), sha256(Role.ENROLMENT.value.encode()).hex())
    async with HookLog(kafka, topic_prefix) as log:
        env = {"KVLEDGER_KAFKA": log.bootstrap, "KVLEDGER_TOPIC_PREFIX": log.prefix}

        def run(*arguments: str) -> str:
            done = kvledger("holder", *arguments, home=home, env=env)
            return done.stdout if done.returncode == 0 else failure(done)

        enrol = ("enrol", "w0-disk", "--tier", "disk", "--owner", "w0", "--idempotency-key", "k", "--json")
        first = json.loads(await asyncio.to_thread(run, *enrol))
        again = json.loads(await asyncio.to_thread(run, *enrol))
        assert (first["owner_state"], first["repeated"], again["repeated"]) == ("never seen", False, True)
        assert (first["number"], first["token"]) == (again["number"], again["token"])
        other = ("enrol", "w1-disk", "--tier", "disk", "--owner", "w1", "--idempotency-key", "k")
        assert "about another store" in await asyncio.to_thread(run, *other)
        listed = json.loads(await asyncio.to_thread(run, "list", "--json"))
        assert [(row["durable_id"], row["owner"]) for row in listed] == [("w0-disk", "w0")]
