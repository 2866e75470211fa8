"""What a hook owes: which orders are open, what its acks say, what a new life or epoch changes."""

from __future__ import annotations

from events.fold.registry import Registry
from events.hooks.obligation import Obligation, Obligations
from events.ids import InvalidateReason, Role
from events.model.control import (
    AuditNonce,
    DeletionRequested,
    DomainCreated,
    DomainScope,
    HoldReleased,
    HoldSet,
    InvalidationRequested,
    TenantScope,
)
from events.model.part import Ack, Refused, RequestStanding
from events.signing import verify
from tests.support.log import ControlLog


class Owed:
    """A control log, its fold, and the obligations of a hook that has keys of acme and beta."""

    def __init__(self) -> None:
        self.log = ControlLog()
        self.registry = Registry(verify)
        self.obligations = Obligations(self.registry, ("acme", "acme/alice", "beta"))
        for domain, tenant in (("acme", "t1"), ("acme/alice", "t1"), ("beta", "t2")):
            self.log.append(DomainCreated(domain=domain, tenant=tenant), Role.CONTROL)
        self.follow()

    def follow(self) -> None:
        for offset in range(self.registry.next_offset, len(self.log.records)):
            _, why = self.registry.fold(offset, *self.log.records[offset])
            assert why == ""

    def delete(self, domain: str) -> int:
        body = DeletionRequested(scope=DomainScope(domain=domain), requester="r")
        number = self.log.append(body, Role.CONTROL)
        self.follow()
        return number

    def acked(self, *domains: str, nonce: int | None = None) -> dict[str, list[int]]:
        """Numbers that the acks discharge, by domain."""
        return {
            domain: [number for number, left in standings.items() if left == 0]
            for domain, standings in self.standings(*domains, nonce=nonce).items()
        }

    def named(self, *domains: str, nonce: int | None = None) -> dict[str, int | None]:
        """The nonce that each domain's ack names."""
        acks = self.obligations.acks(domains, lambda _: {}, 0, 0, nonce)
        return {domain: ack.nonce for domain, (ack, *_) in acks.items() if isinstance(ack, Ack)}

    def standings(self, *domains: str, nonce: int | None = None, left: int = 0) -> dict[str, dict[int, int]]:
        """What the acks say is left, by domain and number; each undischarged order finds `left` copies."""

        def count(one: Obligation) -> dict[str, RequestStanding]:
            return {
                domain: RequestStanding(request=one.number, removed=0, old_left=left)
                for domain in self.obligations.domains(one)
            }

        found: dict[str, dict[int, int]] = {}
        for domain, (ack, *_) in self.obligations.acks(domains, count, 0, 0, nonce).items():
            assert isinstance(ack, Ack)
            assert ack.nonce == nonce
            found[domain] = {request.request: request.old_left for request in ack.requests}
        return found


def test_an_order_is_open_until_it_is_discharged() -> None:
    owed = Owed()
    number = owed.delete("acme")
    (one,) = owed.obligations.open()
    assert (one.number, owed.obligations.domains(one)) == (number, ["acme"])
    one.discharged = True
    assert owed.obligations.open() == []


def test_a_tenants_order_covers_all_its_domains_also_those_made_later() -> None:
    owed = Owed()
    owed.log.append(DeletionRequested(scope=TenantScope(tenant="t1"), requester="r"), Role.CONTROL)
    owed.follow()
    (one,) = owed.obligations.open()
    assert owed.obligations.domains(one) == ["acme", "acme/alice"]


def test_an_ack_lists_every_order_of_its_domain_and_says_0_only_of_the_discharged() -> None:
    owed = Owed()
    first, second, other = owed.delete("acme"), owed.delete("acme"), owed.delete("beta")
    for one in owed.obligations.installed():
        one.discharged = one.number != second
    assert owed.standings("acme", "beta", left=7) == {"acme": {first: 0, second: 7}, "beta": {other: 0}}
    assert owed.standings("acme") == {"acme": {first: 0, second: 1}}
    owed.obligations.installed()[1].discharged = True
    assert owed.acked("acme") == {"acme": [first, second]}


def test_a_held_order_waits_until_the_hold_ends() -> None:
    owed = Owed()
    owed.log.append(HoldSet(hold="h", domain="acme", reason="court"), Role.CONTROL)
    owed.delete("acme")
    assert owed.obligations.open() == []
    owed.log.append(HoldReleased(hold="h"), Role.CONTROL)
    owed.follow()
    assert len(owed.obligations.open()) == 1


def test_a_refusal_is_said_once_and_a_final_one_closes_the_order() -> None:
    owed = Owed()
    number = owed.delete("acme")
    open_ones = owed.obligations.open()
    (event,) = owed.obligations.refusals(open_ones, "blocks_in_use", "drain it")["acme"]
    assert event == Refused(request=number, reason="blocks_in_use", cure="drain it")
    assert owed.obligations.refusals(open_ones, "blocks_in_use", "drain it") == {}
    assert owed.obligations.open() == open_ones
    owed.obligations.refusals(open_ones, "no_delete_path", "none")
    assert owed.obligations.open() == []
    owed.obligations.new_epoch()
    assert len(owed.obligations.open()) == 1


def test_an_ack_repeats_the_refusal_of_an_order_that_it_lists() -> None:
    owed = Owed()
    first, second = owed.delete("acme"), owed.delete("acme")
    one, other = owed.obligations.installed()
    one.discharged = True
    owed.obligations.refusals([other], "no_delete_path", "end the engine")
    _, refused = owed.obligations.acks(["acme"], lambda _: {}, 0, 0)["acme"]
    assert refused == Refused(request=second, reason="no_delete_path", cure="end the engine")
    assert first != second


def test_only_orders_of_the_domain_in_which_something_landed_are_looked_at_again() -> None:
    owed = Owed()
    owed.delete("acme"), owed.delete("beta")
    acme, beta = owed.obligations.installed()
    acme.discharged = beta.discharged = True
    assert owed.obligations.suspect({"acme"}) == [acme]
    assert owed.obligations.suspect(set()) == []


def test_a_life_born_after_an_order_owes_nothing_for_it() -> None:
    owed = Owed()
    old = owed.delete("acme")
    born_after = owed.registry.next_offset - 1
    new = owed.delete("acme")
    owed.obligations.new_life(born_after)
    assert [one.number for one in owed.obligations.open()] == [new]
    assert owed.acked("acme") == {"acme": [old]}


def test_an_audit_nonce_is_answered_once_in_an_epoch_and_only_after_the_discharge() -> None:
    owed = Owed()
    number = owed.delete("acme")
    nonce = owed.log.append(AuditNonce(request=number, nonce="n1"), Role.AUDITOR)
    owed.follow()
    (one,) = owed.obligations.installed()
    assert owed.obligations.nonces() == []
    one.discharged = True
    assert owed.obligations.nonces() == [(nonce, one)]
    assert owed.acked("acme", nonce=nonce) == {"acme": [number]}
    owed.obligations.answered(nonce)
    assert owed.obligations.nonces() == []
    owed.obligations.new_epoch()
    assert owed.obligations.nonces() == [(nonce, one)]


def test_an_ack_for_another_order_goes_on_naming_the_nonce_that_was_answered() -> None:
    owed = Owed()
    first = owed.delete("acme")
    asked = owed.log.append(AuditNonce(request=first, nonce="n1"), Role.AUDITOR)
    second = owed.delete("acme")
    again = owed.log.append(AuditNonce(request=second, nonce="n2"), Role.AUDITOR)
    last = owed.log.append(AuditNonce(request=first, nonce="n3"), Role.AUDITOR)
    owed.follow()
    for one in owed.obligations.installed():
        one.discharged = True
    assert owed.named("acme") == {"acme": None}
    owed.obligations.answered(asked)
    assert owed.named("acme") == {"acme": asked}
    assert owed.named("acme", nonce=last) == {"acme": last}
    owed.obligations.answered(last)
    assert owed.named("acme", nonce=again) == {"acme": last}  # nobody's answer takes another one's away
    owed.obligations.new_epoch()
    assert owed.named("acme") == {"acme": None}


def test_an_invalidation_keeps_its_own_reason() -> None:
    owed = Owed()
    body = InvalidationRequested(scope=DomainScope(domain="acme"), requester="r", reason="integrity")
    owed.log.append(body, Role.CONTROL)
    owed.follow()
    (one,) = owed.obligations.open()
    assert one.reason is InvalidateReason.INTEGRITY
    assert owed.obligations.newest_covering("acme") == one.number
    assert owed.obligations.newest_covering("beta") == -1
