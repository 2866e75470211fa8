"""Examines one engine from outside: a prompt twice, the lookup's prediction between, and why they differ."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from events.errors import KvledgerError
from events.hooks.engine_http import EngineHttp, json_of
from events.ids import Basis
from events.model.profile import ContentProfile
from kvledger.attachment.address import RankAddress, SourceUnreachableError, given, resolve
from kvledger.attachment.bridge_settings import BridgeSettings, read_all
from kvledger.attachment.diagnosis import Cause, Diagnosis, Findings, Prediction, diagnose
from kvledger.attachment.identity import learn
from kvledger.attachment.metric_page import count_of
from kvledger.attachment.plan import ask
from kvledger.attachment.probe import Prober, Sent
from kvledger.attachment.report import EngineReport
from kvledger.failure import CommandError, ExitCode
from router_client.client import RouterClient
from router_client.failure import DeniedError, RouterError, StaleError, UnavailableError, UnknownProfileError

BLOCKS = 4
DEFAULT_BLOCK = 16
MAX_PROMPT = 1 << 17
"""Tokens; an engine that says that its blocks are larger is not examined with whole ones."""
PREDICT_S = 10.0
ASK_S = 5.0
BOUND_S = 3_600.0
"""Any age is taken; whether it covers the first answer is judged here."""


@dataclass(frozen=True, slots=True)
class Examined:
    """One rank, and what came of it."""

    rank: int
    first: Sent
    second: Sent
    prediction: Prediction
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Lookups:
    """The lookup service to ask, and the bearer token if it wants one."""

    url: str
    token: str | None = None

    async def workers(self) -> list[Mapping[str, Any]]:
        """Rows of `/v1/workers`. Raises CommandError."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            async with httpx.AsyncClient(timeout=ASK_S, trust_env=False, headers=headers) as client:
                answer = await client.get(f"{self.url}/v1/workers")
                answer.raise_for_status()
                rows = list(json_of(answer)["workers"])
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
            raise CommandError(
                f"the lookup service at {self.url} does not list its workers ({type(error).__name__})",
                advice="start the stack with `kvledger up`, or name the service with --lookup-url",
                exit_code=ExitCode.UNAVAILABLE,
            ) from error
        return [row for row in rows if isinstance(row, dict) and _is_row(row)]


def _is_row(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("worker"), str) and isinstance(row.get("dp_rank"), int)


async def choose(url: str | None, lookups: Lookups) -> str:
    """The engine to examine: the one that was named, else the only one that bridges say where to reach.

    Raises CommandError.
    """
    if url is not None:
        return url.rstrip("/")
    rows = await lookups.workers()
    told = {str(row.get("endpoint") or "") for row in rows}
    known = sorted(one for one in told if one.startswith(("http://", "https://")))
    if len(known) == 1:
        return known[0].rstrip("/")
    listed = ", ".join(known) or "none is known: kvledger attach http://ENGINE starts a bridge that says so"
    raise CommandError(
        "which engine? kvledger doctor http://ENGINE", advice=f"of {listed}", exit_code=ExitCode.USAGE
    )


async def examine(
    url: str, lookups: Lookups, home: Path, api_key: str | None, events: str | None
) -> tuple[EngineReport, list[Examined]]:
    """Every rank in turn. Raises CommandError if the engine or the lookup service can't be asked."""
    report = await ask(url, api_key)
    rows = await lookups.workers()
    bridges = [one for one in read_all(home) if one.url is not None and one.url.rstrip("/") == url]
    names = {one.worker for one in bridges}
    mine = [
        row for row in rows if str(row.get("endpoint") or "").rstrip("/") == url or row["worker"] in names
    ]
    # A worker that was attached under another name before falls silent; who speaks now is meant.
    mine.sort(key=lambda row: float("inf") if row.get("pulse_ms_ago") is None else row["pulse_ms_ago"])
    ranks = sorted({0, *(report.sources or {}), *(int(row["dp_rank"]) for row in mine)})
    try:
        learned = learn(report, None, {}, len(ranks)).profile.content
    except KvledgerError as error:
        raise CommandError(str(error), exit_code=ExitCode.UNAVAILABLE) from error
    found: list[Examined] = []
    for rank in ranks:
        row = next((row for row in mine if row["dp_rank"] == rank), None)
        bridge = next(
            (one for one in bridges if one.rank == rank and (row is None or one.worker == row["worker"])),
            None,
        )
        http = EngineHttp(url, rank=rank, api_key=api_key)
        source = await _source(report, rank, events)
        try:
            found.append(await _rank(http, report, rank, learned, source, row, bridge, lookups))
        except KvledgerError as error:
            raise CommandError(str(error), exit_code=ExitCode.UNAVAILABLE) from error
    return report, found


async def _rank(
    http: EngineHttp,
    report: EngineReport,
    rank: int,
    learned: ContentProfile,
    source: RankAddress | None,
    row: Mapping[str, Any] | None,
    bridge: BridgeSettings | None,
    lookups: Lookups,
) -> Examined:
    prober = Prober(http, report, rank)
    # A little more than whole blocks: the last token is always computed, so a block that it ends is no hit.
    length = _length(report, learned)
    tokens = await prober.prompt(length)
    first = await prober.send(tokens)
    prediction = Prediction()
    if row is not None:
        domain = bridge.domain if bridge is not None else None
        prediction = await _predict(report, tokens, str(row["worker"]), rank, domain, lookups)
    second = await prober.send(tokens)
    findings = Findings(report, rank, learned, source, row, bridge, prediction, second)
    diagnosis = diagnose(findings)
    endpoint = source.endpoint if source is not None else bridge.endpoint if bridge is not None else None
    bound = bridge is not None and "*" in bridge.endpoint
    settled = (None, Cause.PREFIX_CACHING_OFF, Cause.PUBLISHER_OFF)
    if diagnosis.cause not in settled and endpoint is not None and "*" not in endpoint and not bound:
        wire = await prober.watch_wire(endpoint, length)
        findings = Findings(report, rank, learned, source, row, bridge, prediction, second, wire)
        diagnosis = diagnose(findings)
    return Examined(rank, first, second, prediction, diagnosis)


def _length(report: EngineReport, learned: ContentProfile) -> int:
    size = learned.block_tokens or DEFAULT_BLOCK
    alignment = count_of(report.cache_setting("cache_hit_alignment_tokens"))
    step = max(size, alignment or 0)
    length = min(BLOCKS * step + size // 2 + 1, MAX_PROMPT)
    longest = report.model.max_model_len
    return length if longest is None else max(2, min(length, longest - 2))


async def _source(report: EngineReport, rank: int, events: str | None) -> RankAddress | None:
    """Where the engine, or a person, says that the rank publishes; None where nobody does."""
    told = (report.sources or {}).get(rank)
    try:
        if events is not None:
            return given(report.url, rank, events, None, "")
        return None if told is None else await resolve(report.url, rank, told)
    except SourceUnreachableError:
        return None


async def _predict(
    report: EngineReport, tokens: list[int], worker: str, rank: int, domain: str | None, lookups: Lookups
) -> Prediction:
    """Asks until the answer covers everything from before this call, or the time is up."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    last = Prediction()
    async with RouterClient(lookups.url, token=lookups.token, timeout_s=ASK_S) as client:
        while (elapsed_s := loop.time() - begun_s) < PREDICT_S:
            asked_s = loop.time()
            try:
                answer = await client.lookup(
                    profile=report.model.id,
                    token_ids=tokens,
                    max_staleness=BOUND_S,
                    domain=domain,
                    candidates=[worker],
                    min_coverage=0,
                    basis=Basis.UNCONFIRMED,
                )
            except UnknownProfileError:
                last = Prediction(unknown_profile=True)
            except DeniedError as error:
                raise CommandError(
                    str(error), advice="--token-file names a bearer token", exit_code=ExitCode.CONFIGURATION
                ) from error
            except (StaleError, UnavailableError):
                last = Prediction(reason="the service could not answer")
            except RouterError as error:
                raise CommandError(str(error), exit_code=ExitCode.UNAVAILABLE) from error
            else:
                match = next(
                    (one for one in answer.matches if (one.worker, one.dp_rank) == (worker, rank)), None
                )
                left_out = next(
                    (one for one in answer.excluded if one.worker == worker and one.dp_rank in (rank, None)),
                    None,
                )
                if match is not None:
                    last = Prediction(
                        match.matched_tokens, match.staleness_ms, match.basis.value, match.identity
                    )
                    if match.staleness_ms is not None and match.staleness_ms / 1_000 < asked_s - begun_s:
                        return last
                elif left_out is not None:
                    last = Prediction(reason=left_out.reason.value)
            await asyncio.sleep(min(0.1, max(0.0, PREDICT_S - elapsed_s)))
    return last
