"""The destruction of every key, in every ring, under which a store may hold what is in scope; nothing less."""

from __future__ import annotations

from collections import Counter

import pytest

from auditor.finding import Reason
from auditor.verdict import judge
from events.ids import CopyState, Role, Tier, VerdictKind, VerdictReason
from events.keyring import storage_key_id
from events.model.control import Granted, HolderDestroyed, HolderEnrolled, PrefixScope
from events.model.part import CopyRun, Orphans, SnapshotBegin, SnapshotPart, SnapshotRange, TierChanged
from events.signing import Signer
from tests.support.audit_story import Story
from tests.support.bundle import OPERATOR, bundle, first_says, second_says
from tests.support.deletion_case import PENDING, PROVEN, UNPROVABLE
from tests.support.encrypted_store import KEYS, STORE, EncryptedStore, encrypted, gone, listed
from tests.support.log import HIGH, LOW, block, declared

DISCHARGE = "key destroyed in rings a, b"
ASSUMED = f"{STORE} encrypts as declared; its keys were never anywhere but in rings a, b"


def judged(store: EncryptedStore) -> VerdictKind:
    """By all verifiers, which agree."""
    kind = store.verdict().kind
    made = bundle(store.log, store.request)
    assert first_says(made, OPERATOR.public_key) == second_says(made, OPERATOR.public_key) == kind
    return kind


def left(store: EncryptedStore) -> Reason:
    """The one reason that the verdict gives, both verifiers agreeing."""
    assert judged(store) is UNPROVABLE
    (reason,) = store.verdict().reasons
    assert (reason.reason, reason.condition) == (VerdictReason.DURABLE_TIER_UNCOVERED, "P6")
    assert not any(one == ASSUMED for one in store.verdict().assumptions)
    assert {one.discharge for one in store.verdict().holders if one.durable_id} == {"none"}
    return reason


def ended(**more: object) -> EncryptedStore:
    store = EncryptedStore(**more)  # type: ignore[arg-type]
    store.end()
    return store


def test_every_key_destroyed_in_every_ring_discharges_the_store_and_says_what_it_rests_on() -> None:
    store = ended()
    assert "is not destroyed in a, b" in left(store).detail
    store.destroy_all()
    assert judged(store) is PROVEN
    verdict = store.verdict()
    assert ASSUMED in verdict.assumptions
    discharges = {one.holder: one.discharge for one in verdict.holders}
    assert discharges["disk"] == DISCHARGE
    assert discharges["gpu"].startswith("exit attested")


@pytest.mark.parametrize("key", KEYS.values())
@pytest.mark.parametrize("ring", ["a", "b"])
def test_one_key_left_in_one_ring_is_enough_to_discharge_nothing(key: str, ring: str) -> None:
    store = ended()
    for one in KEYS.values():
        for where in ("a", "b"):
            if (one, where) != (key, ring):
                store.destroy(one, where)
    reason = left(store)
    assert f"key {storage_key_id(key).hex()} is not destroyed in {ring}" in reason.detail
    assert f"destroy the key in {ring} and have that attested" in reason.cure
    store.destroy(key, ring)
    assert judged(store) is PROVEN


def test_a_list_of_rings_that_is_not_there_discharges_nothing() -> None:
    store = ended(listed_in=())
    store.destroy_all()
    reason = left(store)
    assert "no ring is listed for key" in reason.detail
    assert "kvledger key rings" in reason.cure
    ignored = {one.why for one in store.log.evidence(store.request).registry.ignored}
    assert ignored == {"unlisted_ring"}
    for key in KEYS.values():
        store.list_rings(key, "a")
    left(store)  # what was attested before nobody had listed the ring doesn't count
    store.destroy_all(rings=("a",))
    assert judged(store) is PROVEN


def test_a_ring_that_is_listed_afterwards_takes_the_discharge_away() -> None:
    store = ended()
    store.destroy_all()
    assert judged(store) is PROVEN
    store.list_rings("k-acme", "c")
    assert "is not destroyed in c" in left(store).detail
    store.destroy("k-acme", "c")
    assert judged(store) is PROVEN
    assert "key destroyed in rings a, b, c" in {one.discharge for one in store.verdict().holders}


def test_a_ring_that_is_listed_again_takes_its_destruction_back() -> None:
    store = ended()
    store.destroy_all()
    store.list_rings("k-eu", "b")
    assert "is not destroyed in b" in left(store).detail
    store.destroy("k-eu", "b")
    assert judged(store) is PROVEN


def test_a_store_that_nobody_declared_encrypted_is_judged_as_ever() -> None:
    store = ended(declared=())
    reason = left(store)
    assert reason.detail == "owner w0 has not acked on its listing"
    assert reason.cure == "let the store's owner list it and ack, or record its destruction"


@pytest.mark.parametrize("missing", KEYS)
def test_every_domain_in_scope_and_what_is_in_none_needs_a_key_that_is_declared(missing: str | None) -> None:
    store = ended(declared=[one for one in KEYS if one != missing])
    store.list_rings(KEYS[missing], "a", "b")
    store.destroy_all()
    reason = left(store)
    named = (
        "what is in no domain that can be named" if missing is None else f"what is in domain {missing} lies"
    )
    assert named in reason.detail
    assert "kvledger holder encrypted" in reason.cure
    store.declare(missing, KEYS[missing])
    if missing == "acme":
        assert "told to lie there before anybody had declared a key" in left(store).detail
    else:
        assert judged(store) is PROVEN


def test_orphans_from_before_any_declaration_lie_there_without_a_key() -> None:
    store = EncryptedStore(declared=("acme", "acme/eu"))
    store.hook.write(Orphans(holder="disk", orphans=2, unassigned=0))
    store.end()
    store.declare(None, "k-rest")
    store.list_rings("k-rest", "a", "b")
    store.destroy_all()
    assert "told to lie there before anybody had declared a key" in left(store).detail


@pytest.mark.parametrize("domain", KEYS)
def test_what_was_ever_declared_unencrypted_no_key_discharges(domain: str | None) -> None:
    store = ended()
    store.destroy_all()
    said = store.declare(domain, None)
    assert f"lies unencrypted by kv.control/{said}" in left(store).detail
    store.declare(domain, KEYS[domain])
    left(store)
    store.log.say(HolderDestroyed(durable_id=STORE, evidence="shredded"), Role.SUPERVISOR)
    assert judged(store) is PROVEN


def test_every_key_that_was_ever_declared_has_to_be_gone() -> None:
    store = ended()
    store.destroy_all()
    store.declare("acme", "k-2")
    assert "no ring is listed" in left(store).detail
    store.list_rings("k-2", "a")
    left(store)
    store.destroy("k-2", "a")
    assert judged(store) is PROVEN


def test_another_domains_key_or_another_store_says_nothing() -> None:
    store = ended()
    store.destroy_all()
    store.log.say(encrypted("umbrella", None), Role.ENROLMENT)
    store.log.say(encrypted("acme", None, store="disk-2"), Role.ENROLMENT)
    assert judged(store) is PROVEN


def test_a_new_owner_has_to_declare_it_anew() -> None:
    store = ended()
    store.log.say(HolderEnrolled(durable_id=STORE, tier=Tier.DISK, owner="w7"), Role.ENROLMENT)
    store.destroy_all()
    assert "nobody has declared for its owner" in left(store).detail
    for domain, key in KEYS.items():
        store.declare(domain, key)
    assert judged(store) is PROVEN


def test_a_store_without_an_owner_has_nobody_whose_word_on_its_keys_counts() -> None:
    store = EncryptedStore(declared=())
    other = "disk-2"
    hook = store.log.hook("w7").open(durable_id=other)
    store.destroy_all()
    for domain, key in KEYS.items():
        store.log.say(encrypted(domain, key, store=other), Role.ENROLMENT)
        store.list_rings(key, "a", "b")
    store.destroy_all()
    store.log.say(HolderDestroyed(durable_id=STORE, evidence="shredded"), Role.SUPERVISOR)
    store.end()
    store.log.attest(hook)
    assert judged(store) is UNPROVABLE
    (reason,) = store.verdict().reasons
    assert (reason.subject, "nobody is enrolled" in reason.detail) == (other, True)


def test_who_alone_may_attest_a_ring_is_the_ring_s_own_affair() -> None:
    hsm = Signer.from_seed(bytes(range(32)))
    store = ended()
    store.destroy_all()
    store.list_rings("k-acme", "a", attester=hsm.public_key)
    store.destroy("k-acme", "a")
    assert "is not destroyed in a" in left(store).detail
    assert {one.why for one in store.log.evidence(store.request).registry.ignored} == {"not_its_attester"}


def test_a_named_attester_needs_the_supervisors_role_too() -> None:
    hsm = Signer.from_seed(bytes(range(32)))
    store = ended()
    store.log.say(Granted(public_key=hsm.public_key, roles=(Role.SUPERVISOR,), label="hsm"), Role.OPERATOR)
    store.destroy_all()
    store.list_rings("k-acme", "a", attester=hsm.public_key)
    store.destroy("k-acme", "a", signer=hsm)
    assert judged(store) is PROVEN


@pytest.mark.parametrize("role", [Role.ENROLMENT, Role.CONTROL, Role.AUDITOR, Role.OPERATOR])
def test_nobody_without_the_supervisors_role_can_attest_that_a_key_is_gone(role: Role) -> None:
    store = ended()
    store.destroy_all("k-acme", "k-eu")
    store.destroy("k-rest", "a")
    store.log.say(gone("k-rest", "b"), role)
    assert judged(store) is UNPROVABLE
    reasons = {one.reason for one in store.verdict().reasons}
    assert reasons == {VerdictReason.SIGNATURE_INVALID, VerdictReason.DURABLE_TIER_UNCOVERED}


def test_a_hook_cannot_attest_for_itself() -> None:
    store = ended()
    store.destroy_all("k-acme", "k-eu")
    store.destroy("k-rest", "a")
    store.destroy("k-rest", "b", signer=store.hook.signer)
    assert judged(store) is UNPROVABLE


@pytest.mark.parametrize("role", [Role.SUPERVISOR, Role.ENROLMENT, Role.AUDITOR])
def test_rings_are_listed_by_control_or_the_operator_alone(role: Role) -> None:
    store = ended()
    store.destroy_all()
    store.log.say(listed("k-acme", "c"), Role.OPERATOR)
    left(store)
    store.destroy("k-acme", "c")
    assert judged(store) is PROVEN
    store.log.say(listed("k-acme", "d"), role)
    assert {one.reason for one in store.verdict().reasons} == {VerdictReason.SIGNATURE_INVALID}


@pytest.mark.parametrize("how", ["stored", "moved", "listed", "orphan"])
def test_what_is_told_to_lie_there_after_the_destruction_shows_another_key_or_none(how: str) -> None:
    store = EncryptedStore()
    hook = store.hook
    hook.store("acme", 5)
    store.destroy_all()
    ids = (block("acme", 5),)
    if how == "stored":
        hook.store("acme", 6, holder="disk")
    elif how == "moved":
        hook.write(parts={"acme": [TierChanged(from_holder="gpu", to_holder="disk", group=0, ids=ids)]})
    elif how == "listed":
        begin = SnapshotBegin(snapshot="s", opened=hook.opening(durable_id=STORE))
        hook.write(begin, parts={"acme": [declared()]})
        run = CopyRun(profile=0, state=CopyState.COMMITTED, ids=ids, parents=(bytes(16),))
        mark = SnapshotRange(snapshot="s", holder="disk", group=0, low=LOW, high=HIGH)
        hook.write(mark, parts={"acme": [SnapshotPart(runs=(run,))]})
    else:
        hook.write(Orphans(holder="disk", orphans=0, unassigned=1))
    store.end()
    assert "was told to lie there by a hook that knew of the key's destruction" in left(store).detail
    key = "k-rest" if how == "orphan" else "k-acme"
    store.list_rings(key, "a")
    store.destroy(key, "a")
    assert judged(store) is PROVEN


@pytest.mark.parametrize("how", ["volatile", "other store", "before"])
def test_what_lands_elsewhere_or_before_the_destruction_is_no_contradiction(how: str) -> None:
    store = EncryptedStore()
    if how == "before":
        store.hook.store("acme", 6, holder="disk")
    store.destroy_all()
    if how == "volatile":
        store.hook.store("acme", 6)
    elif how == "other store":
        store.hook.store("umbrella", 6, holder="disk")
    store.end()
    assert judged(store) is PROVEN


def test_volatile_memory_is_never_discharged_by_a_key() -> None:
    store = EncryptedStore()
    store.destroy_all()
    assert judged(store) is PENDING
    discharges = {one.holder: one.discharge for one in store.verdict().holders}
    assert discharges == {"gpu": "none", "disk": DISCHARGE}
    store.log.fence(store.hook)
    assert judged(store) is UNPROVABLE
    assert VerdictReason.DEATH_BY_TIMEOUT_ONLY in {one.reason for one in store.verdict().reasons}


def test_a_narrower_scope_needs_its_own_domain_and_what_is_in_none() -> None:
    store = ended(declared=("acme", None))
    store.request = store.log.delete(PrefixScope(domain="acme", ids=(block("acme", 1),)))
    store.destroy_all("k-acme", "k-rest")
    assert judged(store) is PROVEN


def test_the_owners_ack_on_a_listing_goes_before_its_keys() -> None:
    store = EncryptedStore()
    store.hook.obey(store.request)
    store.hook.ack(store.request, nonce=store.log.nonce(store.request))
    store.destroy_all()
    assert judged(store) is PROVEN
    assert ASSUMED not in store.verdict().assumptions
    assert {one.discharge for one in store.verdict().holders} == {"ack"}


def test_a_domain_whose_alias_key_the_auditor_lacks_leaves_it_open_whose_keys_count() -> None:
    store = ended()
    store.destroy_all()
    assert store.verdict().kind is PROVEN
    blind = judge(store.log.evidence(store.request, ring={"acme": None}), store.log.frontier())
    assert blind.kind is UNPROVABLE
    assert {one.reason for one in blind.reasons} == {
        VerdictReason.SCOPE_UNDECIDABLE,
        VerdictReason.DURABLE_TIER_UNCOVERED,
    }


def test_both_verifiers_agree_on_random_logs_of_encrypted_stores() -> None:
    seen: Counter[tuple[str, bool]] = Counter()
    for seed in range(60):
        story = Story(seed, 0.25, locked=True)
        made = bundle(story.log, story.request)
        verdict = story.log.verdict(story.request)
        kinds = {first_says(made, OPERATOR.public_key), second_says(made, OPERATOR.public_key), verdict.kind}
        assert len(kinds) == 1, seed
        shredded = any(one.discharge.startswith("key destroyed") for one in verdict.holders)
        seen[verdict.kind, shredded] += 1
    assert min(seen[kind, True] for kind in (PROVEN, UNPROVABLE)) > 0, seen
