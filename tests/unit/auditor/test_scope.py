"""What a request reaches: domains, subjects, prefixes, ids and profiles, and what can't be decided."""

from __future__ import annotations

import pytest

from auditor.finding import Verdict
from auditor.paper.wording import meaning_of
from events.ids import Role, VerdictReason
from events.model.control import (
    DomainAdmitted,
    DomainCreated,
    DomainScope,
    HoldReleased,
    HoldSet,
    IdsScope,
    InventoryMember,
    InventoryStated,
    MemberGone,
    PrefixScope,
    ProfileScope,
    SubjectScope,
)
from tests.support.bundle import AUDITOR, OPERATOR, bundle, first_says, second_says
from tests.support.deletion_case import PENDING, PROVEN, REFUTED, UNPROVABLE, Fleet, reasons
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


def test_a_subject_is_its_sub_domain() -> None:
    fleet = Fleet()
    request = fleet.log.delete(SubjectScope(domain="acme", subject="eu", pseudonym=bytes(32)))
    for hook in (fleet.a, fleet.b):
        hook.obey(request, "acme/eu")
    nonce = fleet.log.nonce(request)
    for hook in (fleet.a, fleet.b):
        hook.ack(request, "acme/eu", nonce=nonce)
    assert fleet.log.verdict(request).kind is PROVEN
    fleet.log.bound = None
    assert reasons(fleet.log.verdict(request)) == {VerdictReason.NOT_EVALUATED}
    fleet.log.bound = {fleet.old[0]}
    assert reasons(fleet.log.verdict(request)) == {VerdictReason.SCOPE_UNDECIDABLE}
    nobody = fleet.log.delete(SubjectScope(domain="acme", subject="us"))
    assert VerdictReason.SCOPE_UNDECIDABLE in reasons(fleet.log.verdict(nobody))


def test_a_subject_is_its_bound_leaves_and_what_descends_from_them() -> None:
    fleet = Fleet()
    fleet.log.bound = {fleet.old[1]}
    scope = SubjectScope(domain="acme", subject="5f", pseudonym=bytes(32), leaves=(fleet.old[1],), bound_to=1)
    request = fleet.log.delete(scope)
    assert scoped(fleet, request, fleet.old[1:]).kind is PROVEN
    fleet.a.store("acme", 3, parent=fleet.old[1], admitted=request - 1)
    fleet.a.say_state()
    assert fleet.log.verdict(request).kind is REFUTED


def test_a_leafs_ancestors_are_not_the_subjects() -> None:
    fleet = Fleet()
    fleet.log.bound = {fleet.old[1]}
    request = fleet.log.delete(
        SubjectScope(domain="acme", subject="5f", pseudonym=bytes(32), leaves=(fleet.old[1],))
    )
    verdict = scoped(fleet, request, fleet.old[2:])
    assert (verdict.kind, verdict.counterexamples[0].ids) == (REFUTED, (fleet.old[1].hex(),))


def test_a_leaf_that_was_bound_too_late_is_never_passed_over() -> None:
    """Its old copies can't be told from others; the new ones harm nothing."""
    fleet = Fleet()
    scope = SubjectScope(domain="acme", subject="5f", pseudonym=bytes(32), leaves=(fleet.old[2],))
    request = fleet.log.delete(scope)
    fleet.log.bound = {fleet.old[2], fleet.old[1]}
    verdict = scoped(fleet, request, fleet.old[2:])
    assert (verdict.kind, reasons(verdict)) == (UNPROVABLE, {VerdictReason.SCOPE_UNDECIDABLE})
    assert "again" in verdict.reasons[0].cure
    fleet = Fleet()
    request = fleet.log.delete(
        SubjectScope(domain="acme", subject="5f", pseudonym=bytes(32), leaves=(fleet.old[2],))
    )
    late = fleet.a.store("acme", "after", parent=fleet.old[0])
    fleet.log.bound = {fleet.old[2], late[0]}
    assert scoped(fleet, request, fleet.old[2:]).kind is PROVEN


@pytest.mark.parametrize(
    ("cut", "missing", "said"),
    [
        (2, 0, {VerdictReason.RETENTION_TRUNCATED}),
        (0, 1, {VerdictReason.TOPIC_COMPACTED}),
        (2, 1, {VerdictReason.RETENTION_TRUNCATED, VerdictReason.TOPIC_COMPACTED}),
    ],
)
def test_what_nobody_could_read_of_kv_subjects_may_have_been_bound(
    cut: int, missing: int, said: set[VerdictReason]
) -> None:
    fleet = Fleet()
    fleet.log.bound, fleet.log.cut, fleet.log.missing = {fleet.old[1]}, cut, missing
    scope = SubjectScope(domain="acme", subject="5f", pseudonym=bytes(32), leaves=(fleet.old[1],), bound_to=9)
    request = fleet.log.delete(scope)
    verdict = scoped(fleet, request, fleet.old[1:])
    assert (verdict.kind, reasons(verdict)) == (UNPROVABLE, said)
    assert all((one.condition, one.waits) == ("P2", False) for one in verdict.reasons)
    proof = bundle(fleet.log, request)
    assert first_says(proof, AUDITOR.public_key) == second_says(proof, AUDITOR.public_key) == UNPROVABLE
    assert {meaning_of(one).title for one in verdict.reasons} == {
        "Part of the list of the subject's data is gone"
    }
    whole = fleet.log.delete(DomainScope(domain="acme"))
    assert not reasons(fleet.log.verdict(whole)) & said


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
    fleet.a.say_state("umbrella")
    assert fleet.log.verdict(request).kind is REFUTED


def test_another_tenants_records_decide_nothing_here() -> None:
    fleet = Fleet()
    fleet.finish()
    before = fleet.verdict()
    fleet.a.store("umbrella", 99, admitted=0)
    fleet.a.write(parts={"umbrella": [fleet.a.statement("umbrella", claimed=[block("forged")])]})
    after = fleet.verdict()
    assert (before.kind, after.kind) == (PROVEN, PROVEN)


def test_a_member_of_an_outside_inventory_that_nobody_registered_is_missed() -> None:
    fleet = Fleet()
    members = [InventoryMember(worker="w0"), InventoryMember(worker="w10")]
    fleet.log.say(InventoryStated(source="k8s", members=tuple(members)), Role.SUPERVISOR)
    later = fleet.log.delete()
    fleet.request = later
    fleet.finish()
    verdict = fleet.verdict()
    assert (verdict.kind, reasons(verdict)) == (PENDING, {VerdictReason.MEMBERSHIP_INCOMPLETE})
    fleet.log.say(InventoryStated(source="k8s", members=tuple(members)), Role.SUPERVISOR)
    verdict = fleet.verdict()
    assert verdict.kind is PROVEN
    assert any(one.startswith("membership: inventory of 2 by k8s") for one in verdict.assumptions)
    for stranger in (InventoryMember(worker="w7"), InventoryMember(worker="w0", pod="another-uid")):
        before = list(fleet.log.control.records)
        fleet.log.say(InventoryStated(source="k8s", members=(*members, stranger)), Role.SUPERVISOR)
        verdict = fleet.verdict()
        assert (verdict.kind, reasons(verdict)) == (UNPROVABLE, {VerdictReason.MEMBERSHIP_INCOMPLETE})
        fleet.log.control.records[:] = before


@pytest.mark.parametrize("pod", [None, "p-1"])
def test_a_member_that_never_was_is_said_to_be_gone_by_a_later_inventory(pod: str | None) -> None:
    fleet = Fleet()
    fleet.finish()
    ghost = InventoryMember(worker="ghost", pod=pod)

    def say(
        *members: InventoryMember, gone: tuple[MemberGone, ...] | None = None, role: Role = Role.SUPERVISOR
    ) -> None:
        fleet.log.say(InventoryStated(source="k8s", members=members, gone=gone), role)

    def said() -> tuple[str, str]:
        made = bundle(fleet.log, fleet.request)
        return first_says(made, OPERATOR.public_key), second_says(made, OPERATOR.public_key)

    early = MemberGone(worker="ghost", evidence="mistyped")
    say(gone=(early,))
    say(ghost)
    assert said() == ("UNPROVABLE", "UNPROVABLE"), "what is said before it is named doesn't count"
    say(gone=(MemberGone(worker="ghost", pod="another", evidence="mistyped"),))
    assert said() == ("UNPROVABLE", "UNPROVABLE")
    before = list(fleet.log.control.records)
    say(gone=(early,), role=Role.CONTROL)
    assert said() == ("UNPROVABLE", "UNPROVABLE")
    fleet.log.control.records[:] = before
    say(gone=(early,))
    assert said() == ("PROVEN", "PROVEN")
    name = "ghost" if pod is None else "ghost in pod p-1"
    assert any(one.startswith(f"member {name}, named by k8s") for one in fleet.verdict().assumptions)
    say(ghost)
    assert said() == ("UNPROVABLE", "UNPROVABLE"), "named again it is owed again"


def test_an_inventory_without_the_supervisors_role_counts_for_nothing() -> None:
    fleet = Fleet()
    fleet.log.say(InventoryStated(source="me", members=()), Role.CONTROL)
    fleet.finish()
    verdict = fleet.verdict()
    assert reasons(verdict) == {VerdictReason.SIGNATURE_INVALID}
    assert "membership: self-declared" in verdict.assumptions


def test_a_tenants_hold_makes_its_request_wait_and_says_so() -> None:
    fleet = Fleet()
    fleet.log.say(HoldSet(hold="case-7", tenant="acme", reason="court"), Role.CONTROL)
    verdict = fleet.verdict()
    waiting = [one for one in verdict.reasons if one.condition == "P2"]
    assert (verdict.kind, {one.reason for one in waiting}) == (PENDING, {VerdictReason.FRONTIER_BEHIND})
    assert all("held: legal hold case-7" in one.detail for one in waiting)
    assert all("hold release case-7" in one.cure for one in waiting)
    fleet.log.say(HoldReleased(hold="case-7"), Role.CONTROL)
    fleet.finish()
    assert fleet.verdict().kind is PROVEN
