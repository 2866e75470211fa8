"""Quota limits, fences, holds and policies over REST: an operator's words that no holder has to answer."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from events.fold.registry import Registry
from events.ids import StreamKey, Tier, Unit
from events.kafka.connection import RawRecord
from events.model.control import ControlRecord, Fenced, HoldReleased, HoldSet, LimitSet, PolicySet
from events.model.field import MAX_COUNT, Count, Name, Rank
from events.receipt import Receipt, make_receipt
from indexer.service.body import fail
from indexer.service.credential import CallerRole, Principal
from indexer.service.scribe import Scribe
from router_client.problem import ProblemKind
from router_client.wire import Model

MAX_REMEMBERED = 10_000
"""Directives with a key that are remembered; an older key is refused as a conflict, never obeyed again."""


class LimitBody(Model):
    """One tenant's limit on one tier; a bound that isn't given is taken away."""

    tenant: Name
    tier: Literal["gpu", "cpu", "disk", "remote"]
    unit: Literal["blocks", "bytes"]
    soft: Count | None = None
    hard: Count | None = None

    @model_validator(mode="after")
    def _ordered(self) -> LimitBody:
        if self.soft is not None and self.hard is not None and self.soft > self.hard:
            raise ValueError("the soft limit lies above the hard one")
        return self


class FenceBody(Model):
    """One rank of a worker, in its present epoch unless another is named. It is no longer eligible and still
    owes its acks; only a new epoch brings the worker back."""

    worker: Name
    dp_rank: Rank = 0
    epoch: Name | None = None


class PlacedBody(Model):
    """Either a domain or a tenant, whose every domain is meant."""

    domain: Name | None = None
    tenant: Name | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.domain is None) == (self.tenant is None):
            raise ValueError("name either a domain or a tenant")
        return self


class HoldBody(PlacedBody):
    """A legal hold; deletions that reach what it stands on wait visibly until it is released."""

    hold: Name
    reason: Annotated[str, Field(min_length=1, max_length=2_000)]


class ReleaseBody(Model):
    hold: Name


class PolicyBody(PlacedBody):
    """Takes the place of the policy before; what isn't given is no longer asked for."""

    retain_s: Annotated[int, Field(ge=60, le=MAX_COUNT)] | None = None
    prove_within_s: Count | None = None


Directive = LimitSet | Fenced | HoldSet | HoldReleased | PolicySet


@dataclass(frozen=True, slots=True)
class _Given:
    offset: int
    record_sha256: bytes
    body: Directive


class DirectiveDesk:
    """Takes limits, fences, holds and policies of operators. Needs the control key."""

    def __init__(self, registry: Registry, scribe: Scribe) -> None:
        self._registry = registry
        self._scribe = scribe
        self._given: OrderedDict[tuple[str, str], _Given] = OrderedDict()
        self._obeyed: OrderedDict[int, None] = OrderedDict()

    @property
    def remembered(self) -> int:
        """Keys whose directive is known."""
        return len(self._given)

    def folded(self, raw: RawRecord, record: ControlRecord | None, why: str) -> None:
        """Every record of kv.control passes here, also those that another replica wrote."""
        if record is None or why or not isinstance(record.body, Directive):
            return
        self._obeyed[raw.offset] = None
        if len(self._obeyed) > MAX_REMEMBERED:
            self._obeyed.popitem(last=False)
        header = record.header
        if header.idempotency_key is not None:
            scoped = (header.key_scope or header.signer, header.idempotency_key)
            self._given[scoped] = _Given(raw.offset, record.record_sha256, record.body)
            if len(self._given) > MAX_REMEMBERED:
                self._given.popitem(last=False)

    async def limit(self, body: LimitBody, principal: Principal, key: str | None) -> Receipt:
        """Sets a limit, or finds that the same caller set it under the same key before."""
        self._operators(principal)
        if body.tenant not in {domain.tenant for domain in self._registry.domains.values()}:
            raise fail(ProblemKind.NOT_FOUND, "no tenant of this name owns a domain", field="tenant")
        said = LimitSet(
            tenant=body.tenant, tier=Tier(body.tier), unit=Unit(body.unit), soft=body.soft, hard=body.hard
        )
        return await self._give(said, principal, key)

    async def fence(self, body: FenceBody, principal: Principal, key: str | None) -> Receipt:
        """Fences a stream, or finds that the same caller did so under the same key before."""
        self._operators(principal)
        known = self._given.get((principal.name, key)) if key is not None else None
        epoch = body.epoch
        if epoch is None and known is not None and isinstance(known.body, Fenced):
            # The worker may have come back since: the repeated request still means the epoch it fenced.
            epoch = known.body.epoch
        stream = (
            self._registry.current.get((body.worker, body.dp_rank))
            if epoch is None
            else StreamKey(body.worker, body.dp_rank, epoch)
        )
        if stream is None or stream not in self._registry.registrations:
            raise fail(ProblemKind.NOT_FOUND, "no such stream is registered", field="worker")
        said = Fenced(worker=stream.worker, rank=stream.rank, epoch=stream.epoch, evidence="operator")
        return await self._give(said, principal, key)

    async def hold(self, body: HoldBody, principal: Principal, key: str | None) -> Receipt:
        """Places a legal hold, or finds that the same caller placed it under the same key before."""
        self._operators(principal)
        self._known_place(body)
        said = HoldSet(hold=body.hold, domain=body.domain, tenant=body.tenant, reason=body.reason)
        repeated = key is not None and (principal.name, key) in self._registry.idempotency
        if body.hold in self._registry.holds and not repeated:
            raise fail(ProblemKind.CONFLICT, "a hold of this name stands already", field="hold")
        return await self._give(said, principal, key)

    async def release(self, body: ReleaseBody, principal: Principal, key: str | None) -> Receipt:
        """Releases a hold, or finds that the same caller did so under the same key before."""
        self._operators(principal)
        repeated = key is not None and (principal.name, key) in self._registry.idempotency
        if body.hold not in self._registry.holds and not repeated:
            raise fail(ProblemKind.NOT_FOUND, "no hold of this name stands", field="hold")
        return await self._give(HoldReleased(hold=body.hold), principal, key)

    async def policy(self, body: PolicyBody, principal: Principal, key: str | None) -> Receipt:
        """Sets a policy, or finds that the same caller set it under the same key before."""
        self._operators(principal)
        self._known_place(body)
        return await self._give(PolicySet(**body.model_dump()), principal, key)

    def _known_place(self, body: PlacedBody) -> None:
        domains = self._registry.domains
        if body.domain is not None and body.domain not in domains:
            raise fail(ProblemKind.NOT_FOUND, "no domain of this name", field="domain")
        if body.tenant is not None and body.tenant not in {domain.tenant for domain in domains.values()}:
            raise fail(ProblemKind.NOT_FOUND, "no tenant of this name owns a domain", field="tenant")

    def _operators(self, principal: Principal) -> None:
        if principal.role is not CallerRole.OPERATOR:
            raise fail(ProblemKind.FORBIDDEN, "an operator's word")
        self._scribe.signer()

    async def _give(self, said: Directive, principal: Principal, key: str | None) -> Receipt:
        signer, registry = self._scribe.signer(), self._registry
        if key is not None and (principal.name, key) in registry.idempotency:
            return self._repeated(said, principal, key)
        appended = await self._scribe.write(said, principal=principal.name, key=key)
        if appended.offset not in self._obeyed:
            if key is not None and (principal.name, key) in registry.idempotency:
                return self._repeated(said, principal, key)
            raise fail(ProblemKind.LOG_UNAVAILABLE, "it was not accepted: is the key granted?")
        return make_receipt(
            signer,
            log=registry.log,
            number=appended.offset,
            kind=said.kind,
            record_sha256=appended.record_sha256,
            repeated=False,
        )

    def _repeated(self, said: Directive, principal: Principal, key: str) -> Receipt:
        known = self._given.get((principal.name, key))
        if known is None or known.body != said:
            raise fail(ProblemKind.CONFLICT, "this Idempotency-Key was used for something else")
        return make_receipt(
            self._scribe.signer(),
            log=self._registry.log,
            number=known.offset,
            kind=said.kind,
            record_sha256=known.record_sha256,
            repeated=True,
        )
