"""Which domains and blocks a deletion's scope covers; one rule for hooks, readers and auditor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from events.model.control import (
    DomainScope,
    IdsScope,
    PrefixScope,
    ProfileScope,
    Scope,
    SubjectScope,
    TenantScope,
)


def covers_domain(scope: Scope, domain: str, owner_tenant: str | None) -> bool:
    """Whether any block of `domain` can be in scope. A subject is the sub-domain `domain/subject`, and leaves in
    `domain`; a profile reaches every domain."""
    match scope:
        case TenantScope():
            return owner_tenant == scope.tenant
        case DomainScope() | PrefixScope() | IdsScope():
            return domain == scope.domain
        case SubjectScope():
            bound = scope.leaves is not None and domain == scope.domain
            return bound or domain == f"{scope.domain}/{scope.subject}"
        case ProfileScope():
            return True
        case _:
            assert_never(scope)


def is_whole_domain(scope: Scope, domain: str) -> bool:
    """Whether everything of a covered domain is in scope, so that no block needs to be looked at."""
    match scope:
        case TenantScope() | DomainScope():
            return True
        case SubjectScope():
            return domain != scope.domain
        case _:
            return False


def scoped_ids(scope: Scope) -> frozenset[bytes]:
    """Ids that are in scope with all their descendants; empty for scopes that name no ids."""
    if isinstance(scope, PrefixScope):
        return frozenset(scope.ids[-1:])
    if isinstance(scope, SubjectScope):
        return frozenset(scope.leaves or ())
    return frozenset(scope.ids) if isinstance(scope, IdsScope) else frozenset()


def scoped_profiles(scope: Scope) -> frozenset[str]:
    """Ids of the content profiles that a scope names; empty for scopes of another kind."""
    if not isinstance(scope, ProfileScope):
        return frozenset()
    return frozenset(digest.hex() for digest in (scope.profile, *(scope.others or ())))


def visible_length(scope: Scope, domain: str, chain: Sequence[bytes], profile: str) -> int:
    """How many leading blocks of `chain`, in a `domain` that the scope covers, lie before its first in-scope
    block; all behind that one are its descendants."""
    if is_whole_domain(scope, domain):
        return 0
    if isinstance(scope, ProfileScope):
        return 0 if profile in scoped_profiles(scope) else len(chain)
    ids = scoped_ids(scope)
    return next((depth for depth, block in enumerate(chain) if block in ids), len(chain))


def same_scope(given: Scope, again: Scope) -> bool:
    """Whether a repeated order means what the first one did; a subject's leaves may have become more since."""
    if isinstance(given, SubjectScope) and isinstance(again, SubjectScope):
        unnamed: dict[str, None] = {"leaves": None, "bound_to": None}
        return given.model_copy(update=unnamed) == again.model_copy(update=unnamed)
    return given == again
