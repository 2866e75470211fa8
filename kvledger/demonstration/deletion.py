"""Scene: a tenant's data is deleted everywhere, and an auditor proves it from the log."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import Callable
from typing import Any

import asyncpg

from events.ids import Role
from events.kafka.deadline import within
from kvledger.demonstration.cast import BOUND_MS, Cast, SceneError
from kvledger.keyfile import load_signer
from kvledger.stack.plan import process_environment

WAIT_S = 30.0
AUDIT_TIMEOUT_S = 120.0
RECEIPT_FIELDS = ("request", "kind", "record_sha256", "signer", "signature")
VERDICT_FIELDS = ("request", "kind", "conditions", "reasons", "counterexamples", "removed", "recreated")

DATA_NOW = """
SELECT worker, tier, copy_state AS state, sum(blocks)::bigint AS blocks
FROM compliance.data_now WHERE tenant = $1 GROUP BY worker, tier, copy_state ORDER BY worker
"""
HELD_AFTER_ACK = (
    "SELECT worker, count(*) AS copies FROM compliance.held_after_ack WHERE request = $1 GROUP BY worker"
)
DELETION = """
SELECT number, tenant, verdict, round(extract(epoch FROM time_to_proof), 1)::float8 AS seconds_to_proof
FROM compliance.deletion WHERE number = $1
"""


async def play(cast: Cast, tenant: str) -> str:
    """Deletes the tenant and returns the auditor's verdict. Raises SceneError."""
    stage, truth = cast.stage, cast.fleet.truth
    stage.scene(
        "A deletion, and its proof",
        "One request fans out to every worker; an auditor with a fold of its own replays the log and judges.",
    )
    worker = cast.fleet.workers[0]
    prompt = cast.prompt(tenant)
    await cast.serve(worker, prompt)
    await cast.visible(prompt, worker)
    stage.say(f"Where is {tenant}'s data now? (SQL view compliance.data_now)")
    stage.rows(await _eventually(cast, DATA_NOW, tenant, bool))
    truth.hide(tenant)
    order = {"scope": {"type": "tenant", "tenant": tenant}, "reason": "contract ended"}
    stage.request("POST", "/v1/deletions", order)
    since_ns = truth.now_ns()
    reply = await cast.rest.post("/v1/deletions", order, Idempotency_Key=f"demo-{secrets.token_hex(4)}")
    receipt = reply.json()
    if reply.status != 201:
        raise SceneError(f"the deletion was answered with {reply.status}: {receipt.get('detail')}")
    stage.reply(reply.status, {name: receipt[name] for name in RECEIPT_FIELDS})
    number = int(receipt["request"])
    answer = await cast.asker.ask(prompt, bound_ms=BOUND_MS, measured=False)
    if sum(answer.matched.values()):
        raise SceneError("a lookup still credits what was deleted")
    stage.moment((truth.now_ns() - since_ns) / 1e6, "no lookup credits any of it from here on")
    state = await _discharged(cast, number)
    stage.moment(
        (truth.now_ns() - since_ns) / 1e6,
        f"all {len(state['holders'])} workers have removed it and acknowledged:"
        f" {sum(holder['removed'] or 0 for holder in state['holders'])} blocks",
    )
    truth.unhide(tenant)
    verdict = await _audit(cast, number)
    stage.say("What a compliance officer sees (SQL):")
    await _eventually(cast, DELETION, number, lambda rows: bool(rows) and rows[0]["verdict"] == verdict)
    for title, query, argument in (
        ("compliance.deletion", DELETION, number),
        ("compliance.data_now", DATA_NOW, tenant),
        ("compliance.held_after_ack", HELD_AFTER_ACK, number),
    ):
        stage.say(f"  {title}")
        stage.rows(await _query(cast, query, argument))
    return verdict


async def _discharged(cast: Cast, number: int) -> Any:
    state: Any = {"holders": []}
    for _ in range(int(WAIT_S * 20)):
        state = (await cast.rest.get(f"/v1/deletions/{number}")).json()
        if state.get("discharged_everywhere"):
            return state
        cast.fleet.check()
        await asyncio.sleep(0.05)
    owing = sorted({h["worker"] for h in state["holders"] if h["standing"] != "discharged"})
    raise SceneError(f"after {WAIT_S:.0f} s these have not acknowledged: {', '.join(owing)}")


async def _audit(cast: Cast, number: int) -> str:
    """Runs the real command beside us, since the fleet must go on answering it."""
    bundle = cast.at.home / f"deletion-{number}.proof.jsonl"
    words = ("audit", "run", "--request", str(number), "--wait", f"{WAIT_S:.0f}", "--bundle", str(bundle))
    shown = (*words[:-1], bundle.name)
    cast.stage.command(f"kvledger {' '.join(shown)}")
    _, output, errors = await _kvledger(cast, *words, "--json")
    try:
        document = json.loads(output)
    except ValueError as error:
        last = errors.strip().splitlines()[-1:] or ["it said nothing"]
        raise SceneError(f"the audit gave no verdict: {last[0]}") from error
    cast.stage.printed(_verdict(document))
    key = load_signer(cast.settings.home, Role.OPERATOR).public_key.hex()
    cast.stage.command(f"kvledger audit verify {bundle.name} --key {key[:12]}…    # offline, anywhere")
    code, output, errors = await _kvledger(cast, "audit", "verify", str(bundle), "--key", key)
    for line in (output if code in (0, 1, 2, 3) else errors).strip().splitlines()[:2]:
        cast.stage.say(f"    {line}")
    return str(document["kind"])


async def _kvledger(cast: Cast, *words: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "kvledger",
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=process_environment(cast.settings, cast.at),
    )
    try:
        output, errors = await within(process.communicate(), AUDIT_TIMEOUT_S)
    except TimeoutError as error:
        raise SceneError(f"kvledger {words[0]} took longer than {AUDIT_TIMEOUT_S:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output.decode(), errors.decode()


def _verdict(document: Any) -> dict[str, Any]:
    shown = {name: document[name] for name in VERDICT_FIELDS if document.get(name) not in (None, [], ())}
    if isinstance(shown.get("conditions"), dict):
        shown["conditions"] = " ".join(f"{name}:{value}" for name, value in shown["conditions"].items())
    return shown


async def _eventually(
    cast: Cast, query: str, argument: object, holds: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    """The rows as soon as they satisfy: the index follows the log by a moment. Raises SceneError."""
    for _ in range(int(WAIT_S * 5)):
        rows = await _query(cast, query, argument)
        if holds(rows):
            return rows
        await asyncio.sleep(0.2)
    raise SceneError(f"the index did not get there within {WAIT_S:.0f} s")


async def _query(cast: Cast, query: str, argument: object) -> list[dict[str, Any]]:
    try:
        connection = await asyncpg.connect(cast.at.database_url, timeout=10)
        try:
            return [dict(row) for row in await connection.fetch(query, argument, timeout=30)]
        finally:
            await connection.close(timeout=10)
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        raise SceneError(f"PostgreSQL gave no answer ({type(error).__name__})") from error
