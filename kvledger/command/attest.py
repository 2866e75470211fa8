"""`kvledger attest k8s|exit|destroyed|key-destroyed|inventory`: a supervisor's word on what has ended, who there is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Callable, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kvledger.command import storage_key
from kvledger.failure import CommandError, ExitCode, plain
from kvledger.settings import Settings, load_settings
from kvledger.wording import counted

if TYPE_CHECKING:
    from events.fold.registry import Registry
    from events.model.control import InventoryMember, InventoryStated
    from kvledger.attesting import Attester, EngineEnd
    from kvledger.cluster import ClusterAddress
    from kvledger.control import Written

M = TypeVar("M")
OPERATOR = "operator"
WORKER_LABEL = "kvledger.io/worker"
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
Api = Annotated[str | None, typer.Option(help="URL of the API server; default: the cluster this runs in")]
TokenFile = Annotated[Path | None, typer.Option(help="bearer token; default: the pod's service account")]
CaFile = Annotated[Path | None, typer.Option(help="CA of the API server; default: the service account's")]
Namespace = Annotated[str | None, typer.Option(help="this namespace alone; default: all")]
Selector = Annotated[str | None, typer.Option(help="label selector of the engines' pods")]
Evidence = Annotated[str, typer.Option(help="what it rests on, for people; it is kept in the log")]
Again = Annotated[
    bool,
    typer.Option("--again", help="also if it is attested already: what has happened since contradicts that"),
]
AGAIN = "--again states it once more, where a verdict says that it wasn't so"


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="A supervisor's word: what has ended, what was destroyed, who there is."
    )
    group.command("k8s")(k8s)
    group.command("exit")(exit_)
    group.command("destroyed")(destroyed)
    group.command("key-destroyed")(storage_key.key_destroyed)
    group.command("inventory")(inventory)
    app.add_typer(group, name="attest")


def k8s(
    api: Api = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    namespace: Namespace = None,
    selector: Selector = None,
    once: Annotated[bool, typer.Option("--once", help="look once instead of watching for ever")] = False,
) -> None:
    """Watch a cluster's pods and attest the end of engine lives whose container has terminated.

    Hooks register the pod they run in when KVLEDGER_POD_UID, KVLEDGER_CONTAINER and, best, KVLEDGER_CONTAINER_ID are
    set. A pod that was only deleted, without a terminated status, is not death. Needs the supervisor key, and the right
    to list and watch pods.

    Example: kvledger attest k8s --namespace llm --selector app=vllm
    """
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for noisy in ("aiokafka", "httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    address = address_of(api, token_file, ca_file, namespace, selector)
    count = asyncio.run(_watch(load_settings(), address, once=once))
    if once:
        typer.echo(f"{counted(count, 'engine life', 'engine lives')} attested to be over")


def exit_(
    worker: Annotated[str, typer.Argument(help="the worker's name")],
    engine_life: Annotated[
        str,
        typer.Argument(
            help="the life that ended: its `engine_life` in GET /v1/workers or `audit run --json`"
        ),
    ],
    evidence: Evidence,
    again: Again = False,
    as_json: Json = False,
) -> None:
    """State as an operator that an engine life ended, and its memory with it. The proof names you as the one whose word
    it rests on; a life that tells of copies afterwards, or that a hook attaches to again, is not over, whatever was
    stated. Then state it again (--again) once it is: the newest word counts.

    Example: kvledger attest exit w0 life-7 --evidence "host decommissioned, ticket 88"
    """
    from events.ids import Role
    from events.model.control import ExitAttested
    from kvledger.control import or_unavailable, write_once

    body = _made(
        lambda: ExitAttested(worker=worker, engine_life=engine_life, attester=OPERATOR, evidence=evidence)
    )

    def check(registry: Registry) -> None:
        lives = sorted(
            {r.body.engine_life for r in registry.registrations.values() if r.body.worker == worker}
        )
        if engine_life not in lives:
            known = ", ".join(lives[-5:]) or "none"
            raise _usage(f"{worker} has registered no engine life {engine_life}; its newest are {known}")
        if (worker, engine_life) in registry.exits and not again:
            raise CommandError(
                f"the end of {worker}'s engine life {engine_life} is attested already", advice=AGAIN
            )

    settings = load_settings()
    done = asyncio.run(
        or_unavailable(lambda: write_once(settings, Role.SUPERVISOR, body, principal=OPERATOR, check=check))
    )
    document = {"worker": worker, "engine_life": engine_life, "number": done.number}
    line = f"the end of {worker}'s engine life {engine_life} is attested (control record {done.number})"
    typer.echo(json.dumps(document) if as_json else line)


def destroyed(
    durable_id: Annotated[str, typer.Argument(help="the store's name")],
    evidence: Evidence,
    again: Again = False,
    as_json: Json = False,
) -> None:
    """State that a durable store was destroyed with all that it held; nothing in it is found ever again. If it is used
    afterwards it still owes its deletions, until that is stated anew.

    Example: kvledger attest destroyed w0-disk --evidence "shredded, certificate 17"
    """
    from events.ids import Role
    from events.model.control import HolderDestroyed
    from kvledger.control import connection, or_unavailable, read_registry, write_once
    from kvledger.declared_store import declared_stores

    body = _made(lambda: HolderDestroyed(durable_id=durable_id, evidence=evidence))

    def check(registry: Registry, declared: set[str]) -> None:
        check_store(registry, durable_id, declared)
        if durable_id in registry.destroyed and not again:
            raise CommandError(f"{durable_id} is destroyed already", advice=AGAIN)

    settings = load_settings()

    async def work() -> Written:
        at = connection(settings)
        registry = await read_registry(at)
        enrolled = set(registry.durable_owners)
        declared = set() if durable_id in enrolled else await declared_stores(at, registry.partitions)
        return await write_once(
            settings,
            Role.SUPERVISOR,
            body,
            principal=OPERATOR,
            check=lambda newest: check(newest, declared),
        )

    done = asyncio.run(or_unavailable(work))
    line = f"{durable_id} is destroyed (control record {done.number})"
    typer.echo(json.dumps({"durable_id": durable_id, "number": done.number}) if as_json else line)


def check_store(registry: Registry, durable_id: str, declared: Set[str]) -> None:
    """Raises CommandError for a store that is destroyed, or that nobody has enrolled or declared: a mistyped name would
    leave the store that was meant as it is."""
    known = declared | set(registry.durable_owners)
    if durable_id not in known:
        raise CommandError(
            f"nobody has enrolled or declared a store {durable_id}",
            advice=f"the log has {', '.join(sorted(known)[:10]) or 'none'}; kvledger holder list",
            exit_code=ExitCode.USAGE,
        )
    if durable_id in registry.destroyed:
        raise CommandError(f"{durable_id} is destroyed already")


def inventory(
    file: Annotated[
        Path | None,
        typer.Argument(help="JSON {source, members: [{worker, pod?}]}, or a worker's name on each line"),
    ] = None,
    from_k8s: Annotated[
        bool, typer.Option("--k8s", help="take the cluster's pods instead of a file")
    ] = False,
    by_pod: Annotated[
        bool,
        typer.Option("--by-pod", help="with --k8s: each pod's UID must be registered, not just its name"),
    ] = False,
    worker_label: Annotated[
        str,
        typer.Option(help="with --k8s: label that names the worker; a pod without it goes by its own name"),
    ] = WORKER_LABEL,
    api: Api = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    namespace: Namespace = None,
    selector: Selector = None,
    gone: Annotated[
        list[str] | None,
        typer.Option(
            help="a worker that an earlier inventory named and that never ran, or has ended; repeatable"
        ),
    ] = None,
    evidence: Annotated[str, typer.Option(help="with --gone: how you know")] = "",
    as_json: Json = False,
) -> None:
    """State who there is by the word of somebody outside, signed, in kv.control. From then on every deletion wants an
    inventory stated behind it, and is unprovable while a member of one has neither registered nor been stated gone.

    Example: kvledger attest inventory --k8s --namespace llm --selector app=vllm
    """
    from events.ids import Role
    from events.model.control import InventoryStated, MemberGone
    from kvledger.control import or_unavailable, write_once

    if from_k8s == (file is not None):
        raise _usage("give a file, or --k8s")
    if bool(gone) != bool(evidence):
        raise _usage("--gone and --evidence go together")
    if file is not None:
        given = read_inventory(file)
    else:
        address = address_of(api, token_file, ca_file, namespace, selector)
        pods = asyncio.run(_pods(address, worker_label, by_pod=by_pod))
        given = _made(lambda: InventoryStated(source="kubernetes", members=tuple(pods)))
    body = _made(
        lambda: InventoryStated(
            source=given.source,
            members=given.members,
            gone=(*(given.gone or ()), *(MemberGone(worker=one, evidence=evidence) for one in gone or ()))
            or None,
        )
    )
    source, members = body.source, body.members
    settings = load_settings()
    done = asyncio.run(
        or_unavailable(lambda: write_once(settings, Role.SUPERVISOR, body, principal=OPERATOR))
    )
    if as_json:
        typer.echo(json.dumps({"source": source, "members": len(members), "number": done.number}))
    else:
        typer.echo(f"{counted(len(members), 'member')} by {source} (control record {done.number})")


def read_inventory(path: Path) -> InventoryStated:
    """What a file states. Raises CommandError naming the place that can't be read."""
    from pydantic import ValidationError

    from events.model.control import InventoryMember, InventoryStated

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _usage(f"{path} can't be read ({type(error).__name__})") from error
    try:
        if text.lstrip().startswith("{"):
            return InventoryStated.model_validate_json(text)
        names = dict.fromkeys(line.strip() for line in text.splitlines() if line.strip())
        if not names:
            raise _usage(
                f'{path} names nobody; of a fleet without members say {{"source": …, "members": []}}'
            )
        return InventoryStated(source="file", members=tuple(InventoryMember(worker=name) for name in names))
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _usage(f"{path}: {where}: {plain(first['msg'])}") from error


def address_of(
    api: str | None,
    token_file: Path | None,
    ca_file: Path | None,
    namespace: str | None,
    selector: str | None,
) -> ClusterAddress:
    """Raises CommandError outside of a cluster if no address is given."""
    from kvledger.cluster import ClusterAddress

    inside = ClusterAddress.inside()
    if api is None and inside is None:
        raise CommandError(
            "this process runs in no cluster",
            advice="give --api URL, and --token-file and --ca-file",
            exit_code=ExitCode.CONFIGURATION,
        )
    if api is not None or inside is None:
        return ClusterAddress((api or "").rstrip("/"), token_file, ca_file, namespace, selector)
    return ClusterAddress(
        inside.url, token_file or inside.token_file, ca_file or inside.ca_file, namespace, selector
    )


async def _watch(settings: Settings, address: ClusterAddress, *, once: bool) -> int:
    from events.ids import Role
    from kvledger.attesting import Attester
    from kvledger.cluster import ClusterError, connected
    from kvledger.control import or_unavailable
    from kvledger.keyfile import load_signer

    load_signer(settings.home, Role.SUPERVISOR)  # without it nothing could be attested: say so now

    def told(end: EngineEnd, number: int) -> None:
        logging.getLogger("kvledger.attest").info(
            "control record %d: %s is over: %s", number, end.worker, end.evidence
        )

    try:
        async with connected(address) as cluster:
            attester = Attester(settings, cluster, told=told)
            try:
                if once:
                    return await or_unavailable(attester.once)
                await _until_told(attester)
                return 0
            finally:
                await attester.stop()
    except ClusterError as error:
        raise CommandError(str(error), exit_code=ExitCode.UNAVAILABLE) from error


async def _until_told(attester: Attester) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    work, stopped = asyncio.create_task(attester.run()), asyncio.create_task(stop.wait())
    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
    for task in (work, stopped):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work


async def _pods(address: ClusterAddress, label: str, *, by_pod: bool) -> list[InventoryMember]:
    from events.model.control import InventoryMember
    from kvledger.attesting import FINAL, uid_of
    from kvledger.cluster import ClusterError, connected

    try:
        async with connected(address) as cluster:
            pods, _ = await cluster.list()
    except ClusterError as error:
        raise CommandError(str(error), exit_code=ExitCode.UNAVAILABLE) from error
    found: dict[tuple[str, str | None], None] = {}
    for pod in pods:
        metadata = pod.get("metadata") or {}
        if (pod.get("status") or {}).get("phase") not in FINAL:
            name = (metadata.get("labels") or {}).get(label) or metadata.get("name") or ""
            found[str(name), uid_of(pod) if by_pod else None] = None
    return [_made(partial(InventoryMember, worker=name, pod=uid)) for name, uid in found]


def _made(make: Callable[[], M]) -> M:
    """A record; what can't be one is a CommandError."""
    from pydantic import ValidationError

    try:
        return make()
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _usage(f"{where}: {plain(first['msg'])}") from error


def _usage(message: str) -> CommandError:
    return CommandError(message, advice="kvledger attest --help", exit_code=ExitCode.USAGE)
