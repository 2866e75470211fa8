"""Scene: a lookup within its bound, and one that is refused rather than answered with something older."""

from __future__ import annotations

import asyncio
from typing import Any

from kvledger.demonstration.cast import BOUND_MS, PROMPT_BLOCKS, Cast, SceneError
from kvledger.simulate.asker import Answered
from kvledger.simulate.prompt import Prompt

MATCH_FIELDS = ("worker", "matched_blocks", "matched_tokens", "staleness_ms", "basis", "identity")
PROBLEM_FIELDS = ("type", "title", "status", "bound_ms", "best_achievable_ms", "coverage", "retry_after_ms")


async def play(cast: Cast, tenant: str) -> None:
    """Asks, has all engines hang in a step, asks again, lets them go. Raises SceneError."""
    stage, fleet = cast.stage, cast.fleet
    stage.scene(
        "A bounded lookup, and a refused one",
        "The caller says how old the answer may be. The age is measured on the reader's own clock, from beacons"
        " that every worker must confirm.",
    )
    prompt = cast.prompt(tenant)
    await cast.serve(fleet.workers[0], prompt)
    half = cast.beginning(prompt, PROMPT_BLOCKS // 2)
    await cast.serve(fleet.workers[-1], half)
    await cast.visible(prompt, fleet.workers[0])
    answer = await _until(cast, prompt, 200)
    stage.request("POST", "/v1/lookup", _shown(answer, prompt))
    stage.reply(answer.status, _answer(answer.document))
    stage.say("Now every engine hangs in a step: hooks go on pulsing, but can't confirm anything.")
    fleet.hold()
    try:
        refused = await _until(cast, prompt, 503)
    finally:
        fleet.release()
    stage.request("POST", "/v1/lookup", _shown(refused, prompt))
    stage.reply(refused.status, {name: refused.document.get(name) for name in PROBLEM_FIELDS})
    await _until(cast, prompt, 200)
    stage.say("The step ends, and the same question is answered again.")
    reply = await cast.rest.post(
        "/v1/lookup", {"profile": "sim-8b", "domain": tenant, "token_ids": prompt.token_ids()}
    )
    stage.say("Without a bound there is no answer at all:")
    document = reply.json()
    stage.reply(reply.status, {name: document.get(name) for name in ("type", "title", "detail")})
    if reply.status != 400:
        raise SceneError(f"a lookup without a bound was answered with {reply.status}")


async def _until(cast: Cast, prompt: Prompt, status: int) -> Answered:
    for _ in range(300):
        answer = await cast.asker.ask(prompt, bound_ms=BOUND_MS, measured=False)
        if answer.status == status:
            return answer
        await asyncio.sleep(0.1)
    raise SceneError(f"no lookup was answered with {status} within 30 s")


def _shown(answer: Answered, prompt: Prompt) -> dict[str, Any]:
    return {**answer.question, "token_ids": prompt.token_ids()}


def _answer(document: Any) -> dict[str, Any]:
    matches = [{name: match[name] for name in MATCH_FIELDS} for match in document["matches"]]
    rest = ("excluded", "complete", "coverage", "staleness_ms")
    return {"matches": matches, **{name: document[name] for name in rest}}
