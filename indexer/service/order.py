"""Deletions and invalidations: who may order what, writing the order and reading it back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

from pydantic import Field

from events.fold.registry import Registry
from events.fold.registry_state import Deletion
from events.kafka.connection import LogUnavailableError
from events.kafka.subject import SubjectLog, TooManyLeavesError
from events.model.control import (
    DeletionRequested,
    DomainScope,
    IdsScope,
    InvalidationRequested,
    PrefixScope,
    ProfileScope,
    Scope,
    SubjectScope,
    TenantScope,
)
from events.model.field import Count, Name, Text
from events.model.profile import ContentProfile
from events.receipt import Receipt, make_receipt
from events.scope import same_scope
from events.signing import Signer
from events.subject import SubjectName
from indexer.service.body import fail
from indexer.service.credential import CallerRole, Principal
from indexer.service.prompt import prompt_chains
from indexer.service.scribe import Scribe
from router_client.answer import may_be_declared
from router_client.problem import ProblemKind
from router_client.query import Query
from router_client.standing import survey
from router_client.view import LocalView
from router_client.wire import Label, Model, TokenId

READ_UP_S = 2.0
"""How long an order of a prefix by its tokens waits for records that are announced and not read yet."""


class SubjectNamed(Model):
    """A data subject by the name that the gateway uses, or by its pseudonym (64 hex characters): its sub-domain
    `domain/subject`, if there is one, and all that is bound to it in `kv.subjects` when the order is taken."""

    type: Literal["subject"]
    domain: Name
    subject: SubjectName


class ModelScope(Model):
    """Every content profile that any worker has declared of a model, or of one revision or adapter of it. The ids of
    those profiles are written, so that nobody has to look them up again."""

    type: Literal["model"]
    model: Label
    revision: Label | None = None
    adapter: Label | None = None

    def names(self, content: ContentProfile) -> bool:
        return (
            content.model == self.model
            and self.revision in (None, content.revision)
            and self.adapter in (None, content.adapter)
        )


class TokenPrefixScope(Model):
    """A prefix named by its tokens, which are hashed here and go no further. A partial last block is left
    out, so the scope is the whole blocks before it and everything below them."""

    type: Literal["prefix_tokens"]
    domain: Name
    profile: Label
    adapter: Label | None = None
    token_ids: Annotated[list[TokenId], Field(min_length=1)]


AnyScope = Annotated[
    TenantScope
    | DomainScope
    | SubjectNamed
    | PrefixScope
    | ProfileScope
    | ModelScope
    | IdsScope
    | TokenPrefixScope,
    Field(discriminator="type"),
]


class DeletionBody(Model):
    scope: AnyScope
    reason: Text = ""
    deadline_s: Count | None = None


class InvalidationBody(Model):
    scope: AnyScope
    reason: Literal["model_rollout", "integrity", "quota", "operator"]


class OrderDesk:
    """Takes orders of callers that may give them. Needs the control key."""

    def __init__(
        self,
        view: LocalView,
        scribe: Scribe,
        subjects: SubjectLog,
        *,
        monotonic_ns: Callable[[], int],
        wait_moved: Callable[[float], Awaitable[None]],
    ) -> None:
        self._view = view
        self._subjects = subjects
        self._scribe = scribe
        self._monotonic_ns = monotonic_ns
        self._wait_moved = wait_moved

    async def delete(self, body: DeletionBody, principal: Principal, key: str | None) -> Receipt:
        """Writes a deletion request, or finds the one that the same caller gave the same key before."""
        scope = await self._checked(body.scope, principal)
        order = DeletionRequested(
            scope=scope, requester=principal.name, reason=body.reason, deadline_s=body.deadline_s
        )
        return await self._give(order, principal, key)

    async def invalidate(self, body: InvalidationBody, principal: Principal, key: str | None) -> Receipt:
        """Writes an invalidation, which is carried out like a deletion but not proven."""
        if principal.role is not CallerRole.OPERATOR:
            raise fail(ProblemKind.FORBIDDEN, "an operator's order")
        scope = await self._checked(body.scope, principal)
        order = InvalidationRequested(scope=scope, requester=principal.name, reason=body.reason)
        return await self._give(order, principal, key)

    async def _give(
        self, order: DeletionRequested | InvalidationRequested, principal: Principal, key: str | None
    ) -> Receipt:
        signer = self._scribe.signer()
        registry = self._view.registry
        if key is not None and (principal.name, key) in registry.idempotency:
            return self._repeated(registry.idempotency[principal.name, key], order, signer)
        appended = await self._scribe.write(order, principal=principal.name, key=key)
        if appended.offset not in registry.deletions:
            first = registry.idempotency.get((principal.name, key)) if key is not None else None
            if first is None:
                raise fail(ProblemKind.LOG_UNAVAILABLE, "the order was not accepted: is the key granted?")
            return self._repeated(first, order, signer)
        return self._receipt(registry.deletions[appended.offset], signer, repeated=False)

    def _repeated(
        self, number: int, order: DeletionRequested | InvalidationRequested, signer: Signer
    ) -> Receipt:
        known = self._view.registry.deletions.get(number)
        if known is None or type(known.body) is not type(order) or not same_scope(known.scope, order.scope):
            raise fail(ProblemKind.CONFLICT, "this Idempotency-Key was used for another order")
        return self._receipt(known, signer, repeated=True)

    def _receipt(self, deletion: Deletion, signer: Signer, *, repeated: bool) -> Receipt:
        return make_receipt(
            signer,
            log=self._view.registry.log,
            number=deletion.number,
            kind=deletion.body.kind,
            record_sha256=deletion.record_sha256,
            repeated=repeated,
        )

    async def _checked(self, scope: AnyScope, principal: Principal) -> Scope:
        """The scope to write. Raises ProblemError 403 for what isn't the caller's, alike for what isn't
        there."""
        registry = self._view.registry
        if self._view.control_current_ns() is None:
            raise fail(ProblemKind.INDEX_UNAVAILABLE, "kv.control is still being read", retry_after_ms=500)
        if isinstance(scope, TenantScope):
            tenants = {domain.tenant for domain in registry.domains.values()}
            if scope.tenant in tenants and principal.owns(scope.tenant):
                return scope
        elif isinstance(scope, ProfileScope):
            if principal.role is CallerRole.OPERATOR:
                return scope
        elif isinstance(scope, ModelScope):
            if principal.role is CallerRole.OPERATOR:
                for name in registry.domains:
                    await self._read_up(name)
                return self._declared(scope)
        elif isinstance(scope, SubjectNamed):
            return await self._subject(scope, principal)
        else:
            domain = registry.domains.get(scope.domain)
            if domain is not None and principal.owns(domain.tenant):
                if not isinstance(scope, TokenPrefixScope):
                    return scope
                await self._read_up(scope.domain)
                return self._hashed(scope)
        raise fail(ProblemKind.FORBIDDEN, "no such scope for this caller", field="scope")

    def _declared(self, scope: ModelScope) -> ProfileScope:
        """All profiles of the model that streams of before and now have declared, retired ones too."""
        states = [stream.state for stream in self._view.streams.values()] + list(self._view.former.values())
        found = sorted({p.id for state in states for p in state.profiles.values() if scope.names(p.content)})
        if not found:
            raise fail(ProblemKind.PROFILE_UNKNOWN, "no worker has declared it", field="scope.model")
        first, *others = (bytes.fromhex(digest) for digest in found)
        return ProfileScope(profile=first, others=tuple(others) or None)

    async def _subject(self, scope: SubjectNamed, principal: Principal) -> SubjectScope:
        registry = self._view.registry
        owners = {registry.owner(scope.domain), registry.owner(f"{scope.domain}/{scope.subject}")} - {None}
        found: SubjectScope | None = None
        if owners and all(owner is not None and principal.owns(owner) for owner in owners):
            try:
                found = await self._subjects.scope(registry, self._view.keyring, scope.domain, scope.subject)
            except LogUnavailableError as error:
                raise fail(ProblemKind.LOG_UNAVAILABLE, str(error), retry_after_ms=1_000) from error
            except TooManyLeavesError as error:
                raise fail(ProblemKind.TOO_LARGE, str(error), field="scope.subject") from error
        if found is None:
            raise fail(ProblemKind.FORBIDDEN, "no such scope for this caller", field="scope")
        return found

    async def _read_up(self, domain: str) -> None:
        """Waits until all that the streams had announced is read. Raises ProblemError 503 where one of them may
        have declared a profile that isn't known here: the order would silently not cover it."""
        targets = {key: stream.announced_seq or 0 for key, stream in self._view.streams.items()}
        query = Query(domain, "", None, (), None, None)
        until_ns = self._monotonic_ns() + round(READ_UP_S * 1e9)
        while True:
            now_ns = self._monotonic_ns()
            eligible, _ = survey(self._view, query, now_ns)
            behind = any(
                standing.view is not None and standing.view.state.next_seq < targets.get(standing.key, 0)
                for standing in eligible
            )
            if (
                self._view.caught_up
                and not behind
                and not may_be_declared(self._view, query, eligible, now_ns)
            ):
                return
            if not self._view.caught_up or not behind or now_ns >= until_ns:
                raise fail(
                    ProblemKind.INDEX_UNAVAILABLE,
                    "a worker may have declared a profile that is not read here: see /v1/workers, or name the "
                    "blocks by ids, the domain or the subject",
                    retry_after_ms=500,
                )
            await self._wait_moved((until_ns - now_ns) / 1e9)

    def _hashed(self, scope: TokenPrefixScope) -> Scope:
        chains = prompt_chains(
            self._view,
            where="scope",
            domain=scope.domain,
            profile=scope.profile,
            adapter=scope.adapter,
            token_ids=scope.token_ids,
        )
        found = list(chains.values())
        if len(found) == 1:
            return PrefixScope(type="prefix", domain=scope.domain, ids=tuple(found[0]))
        return IdsScope(type="ids", domain=scope.domain, ids=tuple(chain[-1] for chain in found))


def visible_to(principal: Principal, registry: Registry) -> list[Deletion]:
    """Orders that the caller may see, oldest first: an operator and an auditor all, a tenant those whose
    scope lies in its own domains."""
    if principal.role in (CallerRole.OPERATOR, CallerRole.AUDITOR):
        return list(registry.deletions.values())
    if principal.role is not CallerRole.TENANT:
        raise fail(ProblemKind.FORBIDDEN, "routers see no orders")
    return [
        order
        for order in registry.deletions.values()
        if _tenants(order.scope, registry) == {principal.tenant}
    ]


def _tenants(scope: Scope, registry: Registry) -> set[str | None]:
    """Tenants whose affair a scope is; None where nobody's alone."""
    if isinstance(scope, TenantScope):
        return {scope.tenant}
    if isinstance(scope, ProfileScope):
        return {None}
    if isinstance(scope, SubjectScope):
        return {registry.owner(f"{scope.domain}/{scope.subject}") or registry.owner(scope.domain)}
    return {registry.owner(scope.domain)}
