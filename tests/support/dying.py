"""The real `kvledger` in a process of its own that is killed at one step of what it does to the outside.

    python -m tests.support.dying "after kv.audit verdict" audit run --request 7

It ends as by SIGKILL before what it sends to that topic, or as soon as the broker has acknowledged it; the last word is
a regular expression that the record holds. `before reset` is before the engine is asked to empty itself. What it had
sent earlier is in the log by then. `replica` instead of a command is the lookup service without a database, which
prints its port.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import sys
from typing import Any, NoReturn

from aiokafka import AIOKafkaProducer
from aiokafka.producer.message_accumulator import BatchBuilder

KILLED = -signal.SIGKILL


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody is killed and goes on")


def _readable(topic: str, value: bytes) -> bytes:
    """What a record says; that of kv.audit is packed once more."""
    if topic.endswith("kv.audit"):
        return base64.b64decode(json.loads(value)["statement"])
    return value


class Seam:
    """Between the command and the broker."""

    def __init__(self, when: str, topic: str, mark: str) -> None:
        self._when, self._topic, self._mark = when, topic, re.compile(mark.encode())
        self._earlier: list[asyncio.Future[Any]] = []

    def hits(self, topic: str, values: list[bytes]) -> bool:
        return topic.endswith(self._topic) and any(
            self._mark.search(_readable(topic, value)) for value in values
        )

    async def pass_(self, topic: str, values: list[bytes], send: Any) -> Any:
        hit = self.hits(topic, values)
        if hit and self._when == "before":
            if self._earlier:
                await asyncio.wait(self._earlier)
            _die()
        future = await send()
        self._earlier = [one for one in self._earlier if not one.done()] + [future]
        if hit:
            await asyncio.wait([future])
            future.result()
            _die()
        return future

    def install(self) -> None:
        send, send_batch, append = AIOKafkaProducer.send, AIOKafkaProducer.send_batch, BatchBuilder.append
        batches: dict[int, list[bytes]] = {}

        def appended(builder: Any, **record: Any) -> Any:
            added = append(builder, **record)
            if added is not None:
                batches.setdefault(id(builder), []).append(record["value"] or b"")
            return added

        async def sent(
            producer: Any, topic: str, value: bytes | None = None, *more: Any, **named: Any
        ) -> Any:
            return await self.pass_(
                topic, [value or b""], lambda: send(producer, topic, value, *more, **named)
            )

        async def sent_batch(producer: Any, builder: Any, topic: str, *more: Any, **named: Any) -> Any:
            return await self.pass_(
                topic,
                batches.pop(id(builder), []),
                lambda: send_batch(producer, builder, topic, *more, **named),
            )

        BatchBuilder.append = appended
        AIOKafkaProducer.send, AIOKafkaProducer.send_batch = sent, sent_batch


def _before_reset() -> None:
    from events.hooks.emptying import Emptying

    async def empty(*_: object) -> NoReturn:
        _die()

    Emptying.empty = empty  # type: ignore[method-assign,assignment]


async def _replica() -> None:
    from indexer.service.server import start
    from kvledger.command.serve import make_config
    from kvledger.settings import load_settings

    server = await start(
        make_config(load_settings(), host="127.0.0.1", port=0, credentials=None, replica=None, canary=False)
    )
    print(f"port {server.port}", flush=True)
    await server.task


def main() -> None:
    when, _, rest = sys.argv[1].partition(" ")
    if rest == "reset":
        _before_reset()
    else:
        topic, _, mark = rest.partition(" ")
        Seam(when, topic, mark).install()
    if sys.argv[2] == "replica":
        asyncio.run(_replica())
        return
    from kvledger.cli import main as command

    sys.argv = ["kvledger", *sys.argv[2:]]
    command()


if __name__ == "__main__":
    main()
