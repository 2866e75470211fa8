"""What a request reaches: domains, subjects, prefixes, ids and profiles, and what can't be decided."""

from __future__ import annotations

from auditor.finding import Verdict
from events.ids import Role, VerdictReason
from events.model.control import (
    DomainAdmitted,
    DomainCreated,
    DomainScope,
    IdsScope,
    PrefixScope,
    ProfileScope,
    SubjectScope,
)
from tests.support.deletion_case import PROVEN, REFUTED, UNPROVABLE, Fleet, reasons
from tests.support.log import block


def test_a_missing_key_or_domain_makes_the_scope_undecidable() -> None:
    from auditor.verdict import judge

    fleet = Fleet()
    fleet.finish()
    verdict = judge(fleet.log.evidence(fleet.request, ring={"acme": 1, "umbrella": 1}), ())
    assert (verdict.kind, reasons(verdict)) == (UNPROVABLE, {VerdictReason.SCOPE_UNDECIDABLE})
    nobody = fleet.log.delete(DomainScope(domain="nowhere"))
    assert VerdictReason.SCOPE_UNDECIDABLE in reasons(fleet.log.verdict(nobody))


def test_a_tenant_in_somebody_elses_shared_domain_cannot_be_proven_gone() -> None:
    fleet = Fleet()
    fleet.log.say(DomainCreated(domain="commons", tenant="umbrella", shared=True), Role.CONTROL)
    fleet.log.say(DomainAdmitted(domain="commons", tenant="acme"), Role.CONTROL)
    fleet.finish()
    assert reasons(fleet.verdict()) == {VerdictReason.SHARED_DOMAIN}


def test_a_subject_is_its_sub_domain_and_bound_leaves_are_not_evaluated() -> None:
    fleet = Fleet()
    request = fleet.log.delete(SubjectScope(domain="acme", subject="eu"))
    for hook in (fleet.a, fleet.b):
        hook.obey(request, "acme/eu")
    nonce = fleet.log.nonce(request)
    for hook in (fleet.a, fleet.b):
        hook.ack(request, "acme/eu", nonce=nonce)
    assert fleet.log.verdict(request).kind is PROVEN
    other = fleet.log.delete(SubjectScope(domain="acme", subject="us"))
    assert VerdictReason.NOT_EVALUATED in reasons(fleet.log.verdict(other))


def scoped(fleet: Fleet, request: int, removed: list[bytes]) -> Verdict:
    for hook in (fleet.a, fleet.b):
        hook.remove("acme", removed, request)
        hook.ack(request, "acme")
    nonce = fleet.log.nonce(request)
    for hook in (fleet.a, fleet.b):
        hook.ack(request, "acme", nonce=nonce)
    return fleet.log.verdict(request)


def test_a_prefix_covers_its_descendants_and_nothing_above() -> None:
    fleet = Fleet()
    scope = PrefixScope(domain="acme", ids=tuple(fleet.old[:2]))
    assert scoped(fleet, fleet.log.delete(scope), fleet.old[1:]).kind is PROVEN
    fleet = Fleet()
    scope = PrefixScope(domain="acme", ids=tuple(fleet.old[:2]))
    assert scoped(fleet, fleet.log.delete(scope), fleet.old[1:2]).kind is REFUTED


def test_ids_cover_their_descendants_too() -> None:
    fleet = Fleet()
    assert (
        scoped(fleet, fleet.log.delete(IdsScope(domain="acme", ids=(fleet.old[2],))), fleet.old[2:]).kind
        is PROVEN
    )
    fleet = Fleet()
    assert (
        scoped(fleet, fleet.log.delete(IdsScope(domain="acme", ids=(fleet.old[0],))), fleet.old[:2]).kind
        is REFUTED
    )


def test_an_unknown_ancestor_is_in_every_prefix_scope_and_refutes_nothing() -> None:
    fleet = Fleet()
    fleet.a.store("acme", "lost child", parent=block("never shown"))
    request = fleet.log.delete(PrefixScope(domain="acme", ids=(fleet.old[0],)))
    verdict = scoped(fleet, request, fleet.old)
    assert (verdict.kind, reasons(verdict)) == (UNPROVABLE, {VerdictReason.SCOPE_UNDECIDABLE})


def test_a_profile_scope_reaches_every_domain() -> None:
    from events.identity import profile_digest
    from tests.support.log import PROFILE

    fleet = Fleet()
    request = fleet.log.delete(ProfileScope(profile=bytes.fromhex(profile_digest(PROFILE))))
    every = ("acme", "acme/eu", "umbrella")
    for hook in (fleet.a, fleet.b):
        hook.obey(request, *every)
    nonce = fleet.log.nonce(request)
    for hook in (fleet.a, fleet.b):
        hook.ack(request, *every, nonce=nonce)
    assert fleet.log.verdict(request).kind is PROVEN
    fleet.a.store("umbrella", 9, admitted=2)
    assert fleet.log.verdict(request).kind is REFUTED


def test_another_tenants_records_decide_nothing_here() -> None:
    fleet = Fleet()
    fleet.finish()
    before = fleet.verdict()
    fleet.a.store("umbrella", 99, admitted=0)
    fleet.a.write(parts={"umbrella": [fleet.a.statement("umbrella", claimed=[block("forged")])]})
    after = fleet.verdict()
    assert (before.kind, after.kind) == (PROVEN, PROVEN)
