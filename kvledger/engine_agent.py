"""The agent's part of `kvledger bridge`: what is learned from it, and the engine's end attested."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

from events.errors import KvledgerError
from events.fold.registry import Registry
from events.hooks.agent_client import AgentClient
from events.hooks.agent_link import AgentLink, Attest
from events.hooks.agent_wire import Hello
from events.hooks.client_task import guarded
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_process import port_of
from events.hooks.holder_book import group_of
from events.ids import Capability, Role, Tier
from events.model.control import ExitAttested
from kvledger.control import control_writer
from kvledger.keyfile import KeyFileError
from kvledger.settings import Settings

LOG = logging.getLogger(__name__)
ATTESTER = "kvledger-bridge"
ATTEST_EVERY_S = (2.0, 30.0)
"""Between two tries, at first and at most."""


def link_to(path: Path, rank: int, endpoint: str, replay: str | None) -> AgentLink:
    """The agent at this path, if it is the engine's that publishes at these addresses."""
    return AgentLink(AgentClient(str(path), rank=rank), ports=(port_of(endpoint), port_of(replay)))


def learned(config: EngineConfig, hello: Hello | None) -> EngineConfig:
    """The configuration with what the engine's agent says of its pool; what is configured comes first."""
    if hello is None:
        return config
    groups = tuple(group_of(one.index, one.block_tokens, one.kind, one.window) for one in hello.groups)
    return replace(
        config,
        engine_version=config.engine_version or hello.version,
        removal=Capability.EVICT_BLOCKS,
        admission_known=True,
        groups=config.groups or groups,
        capacity_blocks={Tier.GPU: hello.blocks, **config.capacity_blocks},
    )


class ExitAttester:
    """Writes `exit_attested` under the supervisor's key, where this home has it, and tries until the log has it:
    nobody else has seen that end. `registry` is followed meanwhile. `stop` when done."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._settings = settings
        self._registry = registry
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, worker: str) -> Attest:
        """What a bridge calls when a process of this worker's engine has ended."""

        def attest(life: str, evidence: str) -> None:
            task = asyncio.get_running_loop().create_task(self._write(worker, life, evidence))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return attest

    async def stop(self) -> None:
        """Ends what is still being tried."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, worker: str, life: str, evidence: str) -> None:
        body = ExitAttested(worker=worker, engine_life=life, attester=ATTESTER, evidence=evidence)
        pause_s, longest_s = ATTEST_EVERY_S
        attested = False
        try:
            while not attested:
                try:
                    await guarded(self._append(body))
                    attested = True
                except KeyFileError as error:
                    LOG.error("the end of %s's engine can't be attested: %s", worker, error)
                    return
                except KvledgerError as error:
                    LOG.warning("the end of %s's engine isn't attested yet: %s", worker, error)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, longest_s)
            LOG.info("the end of %s's engine life %s is attested", worker, life)
        except asyncio.CancelledError:
            LOG.error(
                "the end of %s's engine life %s is not attested: the bridge was ended first", worker, life
            )
            raise

    async def _append(self, body: ExitAttested) -> None:
        async with control_writer(self._settings, self._registry, Role.SUPERVISOR) as writer:
            await writer.append(body)
