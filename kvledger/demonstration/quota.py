"""Scene: a tenant holds more than its limit allows, and lookups say so."""

from __future__ import annotations

import asyncio
from typing import Any

from events.ids import Role, Tier, Unit
from events.model.control import LimitSet
from kvledger.control import control_writer
from kvledger.demonstration.cast import BOUND_MS, Cast, SceneError

USAGE_FIELDS = ("tenant", "tiers", "limits", "quota_state")


async def play(cast: Cast, tenant: str) -> None:
    """Sets limits below what the tenant holds and waits for the controller's word. Raises SceneError."""
    stage = cast.stage
    stage.scene(
        "A tenant over its quota",
        "Usage is kept in the same transaction as the index; the controller states how it compares.",
    )
    prompt = cast.prompt(tenant)
    await cast.serve(cast.fleet.workers[0], prompt)
    await cast.visible(prompt, cast.fleet.workers[0])
    held = int((await _usage(cast, tenant))["tiers"]["gpu"]["blocks"])
    soft, hard = held // 2, max(held // 2, held - 1)
    stage.command(
        f"kvledger limit set --tenant {tenant} --tier gpu --unit blocks --soft {soft} --hard {hard}"
    )
    async with control_writer(cast.settings, cast.fleet.host.registry, Role.CONTROL) as writer:
        await writer.append(LimitSet(tenant=tenant, tier=Tier.GPU, unit=Unit.BLOCKS, soft=soft, hard=hard))
    for _ in range(300):
        answer = await cast.asker.ask(prompt, bound_ms=BOUND_MS, measured=False)
        states = (answer.document.get("quota_state") or []) if answer.status == 200 else []
        if any(state["level"] == "over_hard_limit" for state in states):
            break
        await asyncio.sleep(0.1)
    else:
        raise SceneError("no lookup said within 30 s that the tenant is over its limit")
    stage.request("POST", "/v1/lookup", answer.question)
    stage.reply(answer.status, {"quota_state": states})
    stage.request("GET", f"/v1/tenants/{tenant}/usage")
    usage = await _usage(cast, tenant)
    stage.reply(200, {name: usage[name] for name in USAGE_FIELDS})


async def _usage(cast: Cast, tenant: str) -> Any:
    reply = await cast.rest.get(f"/v1/tenants/{tenant}/usage")
    if reply.status != 200:
        raise SceneError(f"usage of {tenant}: status {reply.status}")
    return reply.json()
