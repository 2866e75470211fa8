"""Gateways say which blocks are whose: `subject_bound` records, under a keyed pseudonym."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from events.kafka.connection import LogUnavailableError
from events.kafka.subject import SubjectLog
from events.model.audit import SubjectBound
from events.model.field import Count, Name
from events.subject import SubjectName, given_pseudonym
from indexer.service.body import fail
from indexer.service.credential import CallerRole, Principal
from indexer.service.prompt import prompt_chains
from indexer.service.scribe import Scribe
from router_client.problem import ProblemKind
from router_client.view import LocalView
from router_client.wire import BlockIds, Label, Model, TokenId

MAX_BOUND = 10_000


class SubjectPrompt(Model):
    """A prompt of the subject by its tokens. The first `shared_tokens` of it are everybody's (a system prompt): the
    first block that holds any other is bound, and with it all that descends from it."""

    profile: Label
    adapter: Label | None = None
    token_ids: Annotated[list[TokenId], Field(min_length=1)]
    shared_tokens: Count = 0


class SubjectBody(Model):
    """`subject` is a name, or a pseudonym of 64 hex characters; a name is hashed here and goes no further. Either
    `leaves`, ids that the gateway knows, or a `prompt`."""

    domain: Name
    subject: SubjectName
    leaves: BlockIds | None = None
    prompt: SubjectPrompt | None = None

    @model_validator(mode="after")
    def _either(self) -> SubjectBody:
        if (self.leaves is None) == (self.prompt is None):
            raise ValueError("give either leaves or a prompt")
        return self


class SubjectReceipt(Model):
    """`pseudonym` is what a deletion may name instead of the subject; `bound` is how many leaves were bound now."""

    pseudonym: str
    domain: str
    bound: int


class SubjectDesk:
    """Needs the control key and the domain's keys."""

    def __init__(self, view: LocalView, scribe: Scribe, subjects: SubjectLog) -> None:
        self._view = view
        self._scribe = scribe
        self._subjects = subjects

    async def bind(self, body: SubjectBody, principal: Principal) -> SubjectReceipt:
        """Binds leaves to a subject. Repeating it changes nothing. Raises ProblemError."""
        signer, domain = self._scribe.signer(), self._view.registry.domains.get(body.domain)
        keys = self._view.keyring.get(body.domain)
        if domain is None or keys is None or not may_bind(principal, body.domain, domain.tenant):
            raise fail(ProblemKind.FORBIDDEN, "no such domain for this caller", field="domain")
        leaves = body.leaves if body.leaves is not None else self._first_own(body.domain, body.prompt)
        if not 0 < len(leaves) <= MAX_BOUND:
            raise fail(ProblemKind.MALFORMED, f"1 to {MAX_BOUND} leaves", field="leaves")
        pseudonym = given_pseudonym(body.subject) or keys.pseudonym(body.subject)
        record = SubjectBound(subject=pseudonym, domain=body.domain, leaves=tuple(sorted(set(leaves))))
        try:
            await self._subjects.bind(record, signer)
        except LogUnavailableError as error:
            raise fail(ProblemKind.LOG_UNAVAILABLE, str(error), retry_after_ms=1_000) from error
        return SubjectReceipt(pseudonym=pseudonym.hex(), domain=body.domain, bound=len(record.leaves))

    def _first_own(self, domain: str, prompt: SubjectPrompt | None) -> tuple[bytes, ...]:
        assert prompt is not None
        chains = prompt_chains(
            self._view,
            where="prompt",
            domain=domain,
            profile=prompt.profile,
            adapter=prompt.adapter,
            token_ids=prompt.token_ids,
        )
        found: list[bytes] = []
        for (_, block_tokens), chain in chains.items():
            own = prompt.shared_tokens // block_tokens
            if own < len(chain):
                found.append(chain[own])
        if not found:
            raise fail(ProblemKind.MALFORMED, "no whole block behind them", field="prompt.shared_tokens")
        return tuple(found)


def may_bind(principal: Principal, domain: str, tenant: str) -> bool:
    """Operators and the tenant, and routers, which see the prompts of the domains they are granted."""
    if principal.role is CallerRole.ROUTER:
        return domain in principal.domains or "*" in principal.domains
    return principal.owns(tenant)
