"""Tables of which `kv.control`, `kv.audit` or `kv.quota` makes every row, against what the log says they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from auditor import row_sql
from auditor.row_control import AuditRows, ControlRows, QuotaRows, RowOf
from auditor.row_finding import Finding, FindingKind, Findings, LogPlace, told, told_extra, told_key
from events.topic import AUDIT, CONTROL, QUOTA
from indexer.tables import (
    Base,
    Checkpoint,
    DeletionRequest,
    Domain,
    DurableHolder,
    QuotaChange,
    QuotaLimit,
    Registration,
    TenantQuota,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class TopicComparison:
    """`connection` is inside a repeatable-read transaction; what differs goes into `found`."""

    connection: Any
    found: Findings

    async def control(self, rows: ControlRows) -> None:
        """The tables of kv.control, at the position that `rows` stands for."""
        domains = {(name,): row for name, row in rows.domains.items()}
        numbers = {(number,): row for number, row in rows.registrations().items()}
        requests = {(number,): row for number, row in rows.requests().items()}
        limits: dict[tuple[Any, ...], RowOf] = dict(rows.limits)
        stores = {(name,): row for name, row in rows.stores.items()}
        await self._table(DurableHolder, FindingKind.STORE, ("durable_id",), stores, CONTROL.name)
        await self._table(Domain, FindingKind.DOMAIN, ("name",), domains, CONTROL.name)
        await self._table(Registration, FindingKind.REGISTRATION, ("epoch_no",), numbers, CONTROL.name)
        await self._table(DeletionRequest, FindingKind.REQUEST, ("number",), requests, CONTROL.name)
        await self._table(QuotaLimit, FindingKind.LIMIT, ("tenant", "tier", "unit"), limits, CONTROL.name)

    async def audit(self, rows: AuditRows) -> None:
        """What the auditor has said, at the position that `rows` stands for."""
        for model, kind, said in (
            (Verdict, FindingKind.VERDICT, rows.verdicts),
            (Checkpoint, FindingKind.CHECKPOINT, rows.checkpoints),
        ):
            expected: dict[tuple[Any, ...], RowOf] = {(offset,): row for offset, row in said.items()}
            await self._table(
                model, kind, ("offset",), expected, AUDIT.name, needed=lambda key: key[0] not in rows.doubtful
            )

    async def quota(self, rows: QuotaRows) -> None:
        """What the controller has said, at the position that `rows` stands for."""
        newest: dict[tuple[Any, ...], RowOf] = dict(rows.newest)
        await self._table(TenantQuota, FindingKind.QUOTA, ("tenant", "tier", "unit"), newest, QUOTA.name)
        changes: dict[tuple[Any, ...], RowOf] = {
            (offset,): row for offset, row in rows.told.items() if rows.vague or offset in rows.changes
        }
        await self._table(
            QuotaChange,
            FindingKind.QUOTA_CHANGE,
            ("offset",),
            changes,
            QUOTA.name,
            needed=lambda _: not rows.vague,
            surplus=not rows.vague,
        )

    async def _table(
        self,
        model: type[Base],
        kind: FindingKind,
        key: tuple[str, ...],
        expected: dict[tuple[Any, ...], RowOf],
        topic: str,
        *,
        needed: Callable[[tuple[Any, ...]], bool] = lambda _: True,
        surplus: bool = True,
    ) -> None:
        """`needed`: whether a row of this key has to be there; `surplus`: whether one that the log has nothing for is
        one too many."""
        async for row in row_sql.rows(self.connection, row_sql.whole(model)):
            which = tuple(row[name] for name in key)
            wanted = expected.pop(which, None)
            if wanted is not None:
                self.found.differ(
                    kind, told_key(which), row, wanted.values, LogPlace(topic, 0, wanted.offset)
                )
            elif surplus:
                self.found.add(Finding(kind, told_key(which), told_extra(row, key), None, None))
        for which, missing in expected.items():
            if needed(which):
                self.found.add(
                    Finding(
                        kind, told_key(which), None, told(missing.values), LogPlace(topic, 0, missing.offset)
                    )
                )
