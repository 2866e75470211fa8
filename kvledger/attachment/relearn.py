"""Notices that a running engine may have become another one: restarted, adapters loaded, weights changed.

Most looks cost two requests and a few stats; all is learned again only when something has moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from events.hooks.engine_http import EngineHttp
from kvledger.attachment.metric_page import Sample, total
from kvledger.attachment.plan import Plan, Wanted, here, make_plan
from kvledger.attachment.report import STARTED, ServedModel, read_models, read_weight_version


@dataclass(frozen=True, slots=True)
class Signature:
    """What moves when an engine's identity may have."""

    models: tuple[ServedModel, ...]
    started_s: float | None
    weight_version: str | None
    files: tuple[tuple[str, int, int], ...]
    lives: int


class Relearner:
    """One rank's. `plan` is what its bridge was started with, or has learned since."""

    def __init__(self, wanted: Wanted, home: Path, plan: Plan) -> None:
        self.plan = plan
        self.restarted = False
        """Whether what the last look found came with another process of the engine."""
        self._wanted = wanted
        self._home = home
        self._seen: Signature | None = None

    async def look(
        self, http: EngineHttp, metrics: tuple[Sample, ...], lives: int, timeout_s: float
    ) -> Plan | None:
        """A new plan if anything has moved since the last look, else None. `lives`: the engine lives that the
        event socket has shown. Raises as `read_models` and `make_plan` do; then the next look repeats it."""
        report = self.plan.report
        models = await read_models(http, timeout_s)
        version = await read_weight_version(http, timeout_s) if report.dev_mode else None
        now = Signature(models, total(metrics, STARTED), version, self._stamps(models), lives)
        # What moved between learning and the first look counts, too.
        before = self._seen or Signature(
            report.models, report.started_s, report.weight_version, now.files, lives
        )
        if now == before:
            self._seen = now
            return None
        plan = await make_plan(self._wanted, self._home)
        self.restarted = (now.started_s, now.lives) != (before.started_s, before.lives)
        if not self.restarted and (now.weight_version, _base(now)) == (before.weight_version, _base(before)):
            # The same process with the same weights, whatever has become of the files that it read.
            same = {"content": self.plan.profile.content, "layout": self.plan.profile.layout}
            plan = replace(plan, profile=plan.profile.model_copy(update=same), why=self.plan.why)
        self._seen, self.plan = now, plan
        return plan

    def _stamps(self, models: tuple[ServedModel, ...]) -> tuple[tuple[str, int, int], ...]:
        """Size and time of the adapters' files that are on this machine."""
        found: list[tuple[str, int, int]] = []
        for one in models:
            folder = here(one.root, self._wanted.url) if one.parent is not None else None
            try:
                for path in sorted(folder.iterdir()) if folder is not None else ():
                    stat = path.stat()
                    found.append((str(path), stat.st_size, stat.st_mtime_ns))
            except OSError:
                continue
        return tuple(found)


def _base(signature: Signature) -> list[ServedModel]:
    return [one for one in signature.models if one.parent is None]


def changed_adapters(before: Plan, after: Plan) -> Mapping[str, str | None]:
    """Adapters that are other ones now under their old names, with their new revision."""
    old, new = before.report.adapters, after.report.adapters
    return {
        name: after.profile.adapters.get(name)
        for name in old.keys() & new.keys()
        if old[name] != new[name] or before.profile.adapters.get(name) != after.profile.adapters.get(name)
    }
