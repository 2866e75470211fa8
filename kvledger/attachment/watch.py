"""Watches an engine over HTTP beside its events: does it serve without publishing, is it still the same one?

Events alone can't tell an idle engine from one whose publisher is off or goes elsewhere; the engine's own
counters can. Nor does any event tell that an adapter was loaded again under its name or weights were changed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, MutableMapping

from events.errors import KvledgerError
from events.hooks.bridge import Bridge
from events.hooks.engine_http import EngineHttp
from events.hooks.hook import Hook
from events.ids import Alarm
from kvledger.attachment.life_identity import LifeIdentity
from kvledger.attachment.metric_page import Sample, count_of
from kvledger.attachment.plan import Plan
from kvledger.attachment.relearn import Relearner, changed_adapters
from kvledger.attachment.report import CACHE_INFO, read_metrics
from kvledger.failure import CommandError, ExitCode

LOG = logging.getLogger(__name__)
LOOK_S = 3.0
TIMEOUT_S = 5.0
PROMPTS = "vllm:request_prompt_tokens"


class IdentityChangedError(KvledgerError):
    """The engine computes something else now: its profiles are retired, its bridge must begin anew."""


class EngineWatch:
    """One rank's. `revisions` are the adapters' by name, as the rank's stream reads them. `unheard`: its replay
    socket has said that it never published, so that all it served so far counts. `relearner` and `identity`
    go together: without them only the alarm is watched for."""

    def __init__(
        self,
        http: EngineHttp,
        rank: int,
        bridge: Bridge,
        hook: Hook,
        revisions: MutableMapping[str, str],
        *,
        unheard: bool,
        relearner: Relearner | None = None,
        identity: LifeIdentity | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        self._http = http
        self._rank = str(rank)
        self._bridge = bridge
        self._hook = hook
        self._revisions = revisions
        self._relearner = relearner
        self._identity = identity
        self._look_s = look_s
        self._baseline: float | None = 0.0 if unheard else None
        self._suspected = False

    async def run(self) -> None:
        """Until cancelled. An engine that doesn't answer is looked at again; raises IdentityChangedError."""
        away = False
        while True:
            try:
                await self.look()
            except IdentityChangedError:
                raise
            except KvledgerError as error:
                if not away:
                    LOG.warning("the engine can't be looked at: %s", error)
                away = True
            else:
                if away:
                    LOG.warning("the engine at %s can be looked at again", self._http.url)
                away = False
            await asyncio.sleep(self._look_s)

    async def look(self) -> None:
        """One look. Raises KvledgerError if the engine doesn't answer."""
        metrics = await read_metrics(self._http, TIMEOUT_S)
        self._judge(metrics)
        relearner, identity = self._relearner, self._identity
        if relearner is None or identity is None:
            return
        before = relearner.plan
        try:
            after = await relearner.look(self._http, metrics, self._bridge.counts.lives, TIMEOUT_S)
        except CommandError as error:
            if error.exit_code is not ExitCode.CONFIGURATION:
                raise
            self._hook.retire_profiles()
            raise IdentityChangedError(f"the engine at {self._http.url} is another one: {error}") from error
        if after is not None:
            self._follow(before, after, identity, in_place=not relearner.restarted)
        identity.follow(self._hook.engine_life, relearner.plan)

    def _judge(self, metrics: Iterable[Sample]) -> None:
        """The alarm: prompts of more than a block were served, at two looks, and nothing was ever received."""
        if self._bridge.heard:
            self._suspected, self._hook.alarm = False, None
            return
        served = long_prompts(metrics, self._rank)
        if served is None:
            return
        if self._baseline is None or served < self._baseline:
            self._baseline = 0.0 if self._baseline is not None else served
        if served <= self._baseline:
            self._suspected = False
        elif not self._suspected:
            self._suspected = True
        elif self._hook.alarm is None:
            self._hook.alarm = Alarm.UNPUBLISHED
            LOG.error(
                "%s serves requests and publishes no cache events here: `kvledger doctor` says why",
                self._http.url,
            )

    def _follow(self, before: Plan, after: Plan, identity: LifeIdentity, *, in_place: bool) -> None:
        """`in_place`: the engine went on, so that what it computed before is still in its pool."""
        life = self._hook.engine_life
        if (before.profile.content, before.profile.layout, before.ranks) != (
            after.profile.content,
            after.profile.layout,
            after.ranks,
        ):
            self._hook.retire_profiles()
            if in_place:
                identity.follow(life, after, [None])
            raise IdentityChangedError(f"the engine at {self._http.url} is another one than it was")
        changed = changed_adapters(before, after)
        for name in changed:
            LOG.warning("adapter %s is another one now: what was computed with it is void", name)
            self._revisions.pop(name, None)
            self._hook.retire_profiles(name)
        if in_place:
            identity.follow(life, after, changed)
        self._revisions.update(after.profile.adapters)


def long_prompts(metrics: Iterable[Sample], rank: str) -> float | None:
    """Requests served whose prompt fills at least one block, each of which vLLM must have announced; None
    where the engine doesn't tell, or caches no prefixes. From the histogram's first bound that is no less than
    the block size."""
    block: int | None = None
    caching = True
    count: float | None = None
    bounds: dict[float, float] = {}
    for sample in metrics:
        if sample.labels.get("engine") != rank:
            continue
        if sample.name == CACHE_INFO:
            block = count_of(sample.labels.get("block_size"))
            caching = sample.labels.get("enable_prefix_caching") != "False"
        elif sample.name == f"{PROMPTS}_count":
            count = (count or 0.0) + sample.value
        elif sample.name == f"{PROMPTS}_bucket":
            try:
                bound = float(sample.labels.get("le", "+Inf"))
            except ValueError:
                continue
            if math.isfinite(bound):
                bounds[bound] = bounds.get(bound, 0.0) + sample.value
    least = min((bound for bound in bounds if block is not None and bound >= block), default=None)
    if count is None or least is None or not caching:
        return None
    return count - bounds[least]
