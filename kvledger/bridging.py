"""Runs bridges for one or more engines in one process: the composition behind `kvledger bridge`."""

from __future__ import annotations

import asyncio
import signal
import tomllib
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from events.fold.registry import Registry
from events.hooks.bridge import Bridge
from events.hooks.engine_adapter import EngineAdapter
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_http import EngineHttp
from events.hooks.engine_stream import EngineStream
from events.hooks.hook import Hook, HookIdentity
from events.hooks.host import HookHost, HostPace
from events.hooks.life_file import LifeFile
from events.hooks.reset_queue import ResetPace
from events.ids import CANARY_WORKER, Role
from events.kafka.connection import LogTruncatedError
from events.keyring import KeyRing
from events.model.field import Name
from kvledger.attachment.relearn import Relearner
from kvledger.attachment.watch import IdentityChangedError
from kvledger.attachment.watching import begin_watching
from kvledger.control import connection, require_log
from kvledger.engine_agent import ExitAttester, learned, link_to
from kvledger.engine_input import adapter_for, outliving, source_of, with_page_size
from kvledger.engine_profile import EngineProfile, load_profile
from kvledger.failure import CommandError, ExitCode, plain
from kvledger.keyfile import load_ring, load_signer, read_key
from kvledger.lmcache_input import LmcacheInput, is_input, lmcache_inputs
from kvledger.settings import Settings

ATTACH_S = 5.0
"""How long an engine's replay socket is waited for before its history counts as unknown."""
OPEN_S = 30.0
TROUBLE_EVERY_S = 5.0
"""How often an engine's troubles are looked at; they are told when they have changed."""

Say = Callable[[dict[str, object]], None]


class EngineAddress(BaseModel):
    """One engine rank: its name in the log and where to reach it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    worker: Name
    model: str
    endpoint: str
    replay: str | None = None
    rank: Annotated[int, Field(ge=0, lt=65_536)] = 0
    topic: str = ""
    profile: Path | None = None
    domain: Name = "default"
    engine_url: str | None = None
    agent: Path | None = None
    advertise: str | None = None
    server: str | None = None
    """An LMCache server's own name (`instance_id`); default: `worker`."""
    watch_url: str | None = None
    """The engine's HTTP server, to see whether it serves without publishing; default: `engine_url`."""
    api_key_file: Path | None = None
    identity: EngineProfile | None = None
    """What its blocks are, instead of a profile's file."""

    @field_validator("worker")
    @classmethod
    def _not_reserved(cls, worker: str) -> str:
        if worker == CANARY_WORKER:
            raise ValueError("this name is reserved for kvledger's own canary; give the worker another one")
        return worker


class EngineFile(BaseModel):
    """`[[engine]]` tables of a file for several engines."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Annotated[tuple[EngineAddress, ...], Field(min_length=1)]


def load_engines(path: Path) -> tuple[EngineAddress, ...]:
    """Reads a file of engines; raises CommandError naming the file and the field."""
    try:
        return EngineFile.model_validate(tomllib.loads(path.read_text())).engine
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} can't be read: {error}", exit_code=ExitCode.CONFIGURATION) from error
    except ValidationError as error:
        raise CommandError(f"{path}: {explain(error)}", exit_code=ExitCode.CONFIGURATION) from error


def explain(error: ValidationError) -> str:
    """Where and why, in a few words."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(step) for step in first['loc'])}: {plain(first['msg'])}"


async def run_bridges(
    settings: Settings,
    engines: tuple[EngineAddress, ...],
    say: Say,
    relearner: Callable[[], Relearner] | None = None,
) -> None:
    """Until SIGTERM or SIGINT, then closes every stream and flushes. `say` gets one document an engine once
    its stream is open, and one when it has to wait. `relearner` makes what notices that an engine has become
    another one; then this raises IdentityChangedError, and the streams are left without a word, as nothing may
    claim meanwhile that they are gone. Raises LogUnavailableError; CommandError, also when a task of a hook
    has failed, as a bridge that doesn't obey or pulse must not go on."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    ring = load_ring(settings.home)
    for engine in engines:
        if engine.domain not in ring:
            raise CommandError(
                f"the key ring has no domain {engine.domain}",
                advice=f"kvledger domain add {engine.domain}",
                exit_code=ExitCode.CONFIGURATION,
            )
    resets = ResetPace(share=settings.reset_share, per_hour=settings.resets_per_hour)
    signer = load_signer(settings.home, Role.ENROLMENT)
    host = HookHost(connection(settings), ring, signer, pace=HostPace(resets=resets))
    try:
        await _run_all(settings, engines, say, relearner, host, ring, stopping)
    except IdentityChangedError:
        # Who was told to end while the streams were left doesn't learn the engine anew.
        if not stopping.is_set():
            raise


async def _run_all(
    settings: Settings,
    engines: tuple[EngineAddress, ...],
    say: Say,
    relearner: Callable[[], Relearner] | None,
    host: HookHost,
    ring: KeyRing,
    stopping: asyncio.Event,
) -> None:
    async with host, AsyncExitStack() as stack:
        require_log(host.registry)
        inputs = await stack.enter_async_context(
            lmcache_inputs(engine.endpoint for engine in engines if is_input(engine.endpoint))
        )
        attester = ExitAttester(settings, host.registry)
        tasks = [
            asyncio.create_task(
                _run_one(settings, engine, inputs, host, ring, attester, say, relearner), name=engine.worker
            )
            for engine in engines
        ]
        ended = asyncio.create_task(stopping.wait())
        failed = asyncio.create_task(host.failure())
        try:
            done, _ = await asyncio.wait([ended, failed, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if failed in done:
                raise _failure(failed.result())
            for task in done - {ended}:
                task.result()
        except IdentityChangedError:
            # The other ranks are the same engine's.
            for hook in [hook for hooks in host.hooks.values() for hook in hooks]:
                hook.retire_profiles()
                await host.remove(hook, silently=True)
            raise
        finally:
            for task in (ended, failed, *tasks):
                task.cancel()
            await asyncio.gather(ended, failed, *tasks, return_exceptions=True)
            await attester.stop()


def _failure(error: BaseException) -> CommandError:
    if isinstance(error, LogTruncatedError):
        advice = "start the bridge again once the log is as it should be; it reads it anew"
        failure = CommandError(f"the log was cut: {error}", advice=advice, exit_code=ExitCode.UNAVAILABLE)
    else:
        failure = CommandError(f"a task of the bridge failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


async def _run_one(
    settings: Settings,
    engine: EngineAddress,
    inputs: Mapping[str, LmcacheInput],
    host: HookHost,
    ring: KeyRing,
    attester: ExitAttester,
    say: Say,
    relearner: Callable[[], Relearner] | None,
) -> None:
    profile = load_profile(engine.profile) if engine.profile is not None else EngineProfile()
    profile = engine.identity or profile
    adapter = adapter_for(engine, profile)
    profile = await with_page_size(engine, adapter, profile)
    life_file = LifeFile(settings.home / "bridge" / f"{engine.worker.replace('/', '_')}-{engine.rank}.json")
    http = (
        EngineHttp(
            engine.engine_url,
            rank=engine.rank,
            model=engine.model,
            api_key=read_key(engine.api_key_file),
        )
        if engine.engine_url is not None
        else None
    )
    agent = (
        link_to(engine.agent, engine.rank, engine.endpoint, engine.replay)
        if engine.agent is not None
        else None
    )
    async with source_of(engine, adapter, inputs) as source:
        bridge = Bridge(
            source,
            rank=engine.rank,
            adapter=adapter,
            http=http,
            agent=agent,
            attest=attester.of(engine.worker),
            life_file=life_file,
        )
        attachment = await bridge.attach(
            ATTACH_S, ended=lambda life: (engine.worker, life) in host.registry.exits
        )
        stream = _stream(engine, profile, adapter, bridge, ring, host.registry)
        stream.open(attachment.life, from_birth=attachment.from_birth)
        identity = HookIdentity(engine.worker, engine.rank, engine.advertise, engine.model)
        hook = host.make(identity, attachment.life, bridge, stream)
        bridge.bind(hook, attachment)
        watching = begin_watching(
            settings.home, engine, profile, bridge, hook, stream, attachment, relearner and relearner()
        )
        host.begin(hook)
        running = asyncio.create_task(bridge.run())
        telling = asyncio.create_task(_tell_troubles(engine, bridge, stream, hook, host, say))
        try:
            history = "unknown"
            if attachment.from_birth:
                history = "whole" if bridge.heard else "nothing received yet"
            await _announce(engine, profile, bridge, hook, history, say)
            await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
            await (running if running.done() else watching)
        finally:
            for task in (running, telling, watching):
                task.cancel()
            ends = await asyncio.gather(running, telling, watching, return_exceptions=True)
            if agent is not None:
                agent.close()
            await host.remove(hook, silently=isinstance(ends[-1], IdentityChangedError))


def troubles(bridge: Bridge, stream: EngineStream, hook: Hook, host: HookHost) -> dict[str, int | str]:
    """What went wrong with an engine or was given up for a bound, since the start; nothing if all is well.
    Every one of these is visible in the log, too. `emitter_refused` and `_lost` are of the whole process."""
    counts, bounds, emitter = bridge.counts, stream.bounds, host.emitter.counts
    orphans, unassigned = stream.orphan_counts()
    found: dict[str, int | str] = {
        "lost_messages": counts.lost_messages,
        "unreadable": counts.unreadable,
        "malformed": counts.malformed,
        "unknown_kinds": counts.unknown_kinds,
        "unknown_media": counts.unknown_media,
        "untranslatable": counts.failed,
        "other_rank": counts.wrong_rank,
        "other_topics": counts.foreign_topics,
        "restarts": counts.lives - 1,
        "orphans": orphans,
        "unassigned": unassigned,
        "forgotten": bounds.forgotten,
        "refused_profiles": bounds.refused_profiles,
        "unplaced": bounds.unplaced,
        "removed_unknown": stream.removed_unknown,
        "dropped_records": hook.dropped,
        "emitter_refused": emitter.refused,
        "emitter_lost": emitter.lost,
        "snapshots_overrun": hook.repair.overrun,
        "inventory": "" if stream.inventory_known() else "partial",
        "received": "" if bridge.heard else "nothing",
        "alarm": hook.alarm.value if hook.alarm is not None else "",
        "agent": "absent" if bridge.agent_absent else "",
        "reset_waits": hook.emptying.waits,
        "draining": "until it is idle" if hook.draining else "",
    }
    return {name: value for name, value in found.items() if value}


async def _tell_troubles(
    engine: EngineAddress, bridge: Bridge, stream: EngineStream, hook: Hook, host: HookHost, say: Say
) -> None:
    told: dict[str, int | str] = {}
    while True:
        await asyncio.sleep(TROUBLE_EVERY_S)
        found = troubles(bridge, stream, hook, host)
        if found != told:
            told = found
            say({"worker": engine.worker, "rank": engine.rank, "state": "counts", "counts": found})


def _stream(
    engine: EngineAddress,
    profile: EngineProfile,
    adapter: EngineAdapter,
    bridge: Bridge,
    ring: KeyRing,
    registry: Registry,
) -> EngineStream:
    content = profile.content
    if content.model is None:
        content = content.model_copy(update={"model": engine.model})
    facts = profile.engine
    config = EngineConfig(
        engine=adapter.engine,
        engine_version=facts.version,
        hash_algorithm=facts.hash_algorithm,
        hash_seed=facts.hash_seed,
        removal=bridge.capability,
        admission_known=False,
        connectors=(*adapter.connectors, *facts.connectors),
        short_last_blocks=adapter.short_last_blocks,
        content=content,
        layout=profile.layout,
        block_bytes=facts.block_bytes,
        adapter_revisions=profile.adapters,
        default_domain=engine.domain,
        capacity_blocks=facts.capacity_blocks,
        durable_ids=outliving(engine, adapter) | facts.durable_ids_of(engine.worker),
    )
    config = learned(config, bridge.hello)
    return EngineStream(engine.worker, engine.rank, ring, config, bound_salts=lambda: registry.bound_salts)


async def _announce(
    engine: EngineAddress, profile: EngineProfile, bridge: Bridge, hook: Hook, history: str, say: Say
) -> None:
    while not await hook.opened(OPEN_S):
        why = hook.reporting.why_not_open or "waiting for the log"
        say({"worker": engine.worker, "rank": engine.rank, "state": why})
    missing = [name for name in profile.missing() if name != "model"]
    say(
        {
            "worker": engine.worker,
            "rank": engine.rank,
            "state": "open",
            "stream": str(hook.stream),
            "model": engine.model,
            "domain": engine.domain,
            "identity": "unverified" if missing else "verified",
            "missing": missing,
            "basis": bridge.basis.value,
            "history": history,
            "deletion": bridge.capability.value,
        }
    )
