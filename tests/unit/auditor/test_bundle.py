"""A bundle verifies offline, shows no other tenant, and survives no edit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from auditor.proof import BundleError, pae, unseal
from auditor.verify import verify_bundle
from events.chain import sha256
from events.ids import Role, Tier, Unit, VerdictKind
from events.model.control import (
    DeletionRequested,
    DomainCreated,
    HoldReleased,
    HoldSet,
    LimitSet,
    TenantScope,
)
from events.signing import Signer
from tests.support.audit_log import AuditLog
from tests.support.bundle import AUDITOR, OPERATOR, bundle, first_says, second_says
from tests.support.deletion_case import Fleet
from tests.support.log import block


@pytest.fixture
def fleet() -> tuple[AuditLog, int]:
    """Two tenants on two workers, garbage in both topics, and acme's deletion proven."""
    log = AuditLog()
    hooks = [log.hook("w0").open(), log.hook("w10").open()]
    for hook in hooks:
        hook.store("acme", 1, 2, 3)
        hook.store("umbrella", 1, 2, admitted=1)
    log.say(
        DeletionRequested(scope=TenantScope(tenant="umbrella"), requester="umbrella-operator"),
        Role.CONTROL,
        idempotency_key="k1",
        key_scope="umbrella-operator",
    )
    log.say(LimitSet(tenant="umbrella", tier=Tier.GPU, unit=Unit.BLOCKS, hard=3), Role.CONTROL)
    log.control.records.append((b"garbage of umbrella", None))
    log.events[hooks[0].partition].append(type(log.events[hooks[0].partition][0])(b"umbrella garbage", None))
    request = log.delete()
    for hook in hooks:
        hook.obey(request)
    nonce = log.nonce(request)
    for hook in hooks:
        hook.ack(request, nonce=nonce)
    return log, request


def test_the_verdict_is_recomputed_from_the_file_and_either_key(fleet: tuple[AuditLog, int]) -> None:
    made = bundle(*fleet)
    for key, anchor in ((AUDITOR, "auditor"), (OPERATOR, "operator")):
        verified = verify_bundle(made, key.public_key)
        assert (verified.verdict, verified.anchor) == (fleet[0].verdict(fleet[1]), anchor)
        assert verified.verdict.kind is VerdictKind.PROVEN


def test_no_other_tenant_is_in_it(fleet: tuple[AuditLog, int]) -> None:
    log, request = fleet
    made = bundle(log, request)
    _, payload, _ = unseal(made.split(b"\n")[0])
    assert b"umbrella" not in made + payload
    assert b"acme" in made + payload
    import base64

    for name in (1, 2):
        packed = base64.b64encode(block("umbrella", name))[:20]
        assert packed not in made
        assert block("umbrella", name).hex().encode() not in made + payload


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (
            lambda log, hook, request: (hook.store("acme", 1, admitted=2), hook.say_state()),
            VerdictKind.REFUTED,
        ),
        (lambda log, hook, request: hook.store("acme", 1, admitted=2), VerdictKind.PENDING),
        (lambda log, hook, request: hook.store("acme", 1, admitted=None), VerdictKind.UNPROVABLE),
        (lambda log, hook, request: hook.ack(request, old_left=1), VerdictKind.PENDING),
        (lambda log, hook, request: log.starts.update({hook.partition: 1}), VerdictKind.PENDING),
    ],
)
def test_every_verdict_is_recomputed(
    fleet: tuple[AuditLog, int], spoil: Callable[..., object], kind: VerdictKind
) -> None:
    log, request = fleet
    spoil(log, log.hooks[0], request)
    assert verify_bundle(bundle(log, request), OPERATOR.public_key).verdict.kind is kind


def test_undecodable_records_are_in_the_bundle_by_their_digest(fleet: tuple[AuditLog, int]) -> None:
    log, request = fleet
    hook = log.hooks[0]
    hook.store("acme", 60)
    records = log.events[hook.partition]
    records[-1] = type(records[-1])(records[-1].value.replace(b'"gpu"', b"77777"), None)
    hook.ack(request)
    assert verify_bundle(bundle(log, request), OPERATOR.public_key).verdict == log.verdict(request)


def test_foreign_keys_and_signers_prove_nothing(fleet: tuple[AuditLog, int]) -> None:
    stranger = Signer.from_seed(bytes(32))
    with pytest.raises(BundleError):
        verify_bundle(bundle(*fleet), stranger.public_key)
    for trusted in (stranger, OPERATOR, AUDITOR):
        with pytest.raises(BundleError):
            verify_bundle(bundle(*fleet, stranger), trusted.public_key)
    control = fleet[0].control.signers[Role.CONTROL]
    for trusted in (control, OPERATOR):
        with pytest.raises(BundleError):
            verify_bundle(bundle(*fleet, control), trusted.public_key)


@pytest.mark.parametrize(
    "garbage", [b"", b"\n", b"{}", b"{}\n{}", b"\xff\xfe\n\x00", b"[" * 100_000 + b"\n[", b"null\nnull"]
)
def test_garbage_is_an_error_and_no_crash(garbage: bytes) -> None:
    with pytest.raises(BundleError):
        verify_bundle(garbage, OPERATOR.public_key)


def test_a_cut_bundle_is_invalid_wherever_it_is_cut(fleet: tuple[AuditLog, int]) -> None:
    made = bundle(*fleet)
    for length in range(0, len(made) - 1, 997):
        with pytest.raises(BundleError):
            verify_bundle(made[:length], OPERATOR.public_key)


def test_no_flipped_byte_leaves_a_proof_with_another_meaning(fleet: tuple[AuditLog, int]) -> None:
    made = bundle(*fleet)
    honest = verify_bundle(made, OPERATOR.public_key)
    rng = random.Random(7)
    first = made.index(b"\n")
    places = rng.sample(range(first), 250) + rng.sample(range(first, len(made)), 250)
    survived = 0
    for place in places:
        edited = bytearray(made)
        edited[place] ^= 1 << rng.randrange(8)
        try:
            verified = verify_bundle(bytes(edited), OPERATOR.public_key)
        except BundleError:
            continue
        survived += 1
        assert verified == honest
    assert survived < 5


def resigned(made: bytes, edit: Callable[[list[bytes]], list[bytes]]) -> bytes:
    """The bundle with edited evidence, signed anew by an auditor who lies about what he was shown."""
    from auditor.proof import seal

    first, *lines = made.split(b"\n")
    body = b"\n".join(edit(lines))
    _, payload, _ = unseal(first)
    statement = json.loads(payload)
    statement["subject"][1]["digest"]["sha256"] = sha256(body).hex()
    return seal(json.dumps(statement).encode(), AUDITOR) + b"\n" + body


def test_evidence_that_gives_another_verdict_is_invalid_though_signed(fleet: tuple[AuditLog, int]) -> None:
    log, request = fleet
    log.hooks[0].store("acme", 1, admitted=2)
    made = bundle(log, request)
    verify_bundle(resigned(made, lambda lines: lines), OPERATOR.public_key)
    newest = len(log.events[log.hooks[0].partition]) - 1

    def without_the_newest(lines: list[bytes]) -> list[bytes]:
        return [
            line
            for line in lines
            if not (is_event(line) and (of(line, "p"), of(line, "o")) == (log.hooks[0].partition, newest))
        ]

    with pytest.raises(BundleError, match="evidence gives PROVEN"):
        verify_bundle(resigned(made, without_the_newest), OPERATOR.public_key)


def is_event(line: bytes) -> bool:
    return b'"t":"event"' in line


def of(line: bytes, name: str) -> object:
    return json.loads(line)[name]


def test_a_withheld_part_is_noticed(fleet: tuple[AuditLog, int]) -> None:
    made = bundle(*fleet)

    def withhold(lines: list[bytes]) -> list[bytes]:
        return [
            json.dumps(json.loads(line) | {"b": {"0": json.loads(line)["b"]["0"]}}).encode()
            if is_event(line)
            else line
            for line in lines
        ]

    with pytest.raises(BundleError, match="left out"):
        verify_bundle(resigned(made, withhold), OPERATOR.public_key)


def test_a_withheld_registration_is_noticed(fleet: tuple[AuditLog, int]) -> None:
    made = bundle(*fleet)

    def withhold(lines: list[bytes]) -> list[bytes]:
        return [
            json.dumps({k: v for k, v in json.loads(line).items() if k != "b"}).encode()
            if b"registered" in line
            else line
            for line in lines
        ]

    with pytest.raises(BundleError, match="registered"):
        verify_bundle(resigned(made, withhold), OPERATOR.public_key)


def test_the_envelope_is_a_dsse_envelope_around_an_in_toto_statement(fleet: tuple[AuditLog, int]) -> None:
    keyid, payload, signature = unseal(bundle(*fleet).split(b"\n")[0])
    assert keyid == AUDITOR.id
    kind = b"application/vnd.in-toto+json"
    assert pae(payload) == b" ".join(
        [b"DSSEv1", str(len(kind)).encode(), kind, str(len(payload)).encode(), payload]
    )
    from events.signing import verify

    assert verify(AUDITOR.public_key, signature, pae(payload))
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicate"]["verdict"]["kind"] == "PROVEN"


def test_what_is_shown_by_digests_alone_is_counted(fleet: tuple[AuditLog, int]) -> None:
    """Umbrella's request names its principal; that and the garbage in kv.control are sealed."""
    assert verify_bundle(bundle(*fleet), OPERATOR.public_key).by_digest == 2


def test_what_nobody_obeys_of_another_tenant_spoils_no_bundle() -> None:
    """Two replicas at once: a hold is released twice, a domain created twice. Only the bodies, which aren't shown,
    would say why the second one counts for nothing."""
    fleet = Fleet()
    for body in (
        HoldSet(hold="theirs", tenant="umbrella", reason="secret"),
        HoldReleased(hold="theirs"),
        HoldReleased(hold="theirs"),
        DomainCreated(domain="umbrella", tenant="umbrella"),
        HoldSet(hold="name", tenant="acme", reason="ours"),
        HoldReleased(hold="name"),
        HoldSet(hold="name", tenant="umbrella", reason="secret"),
        HoldReleased(hold="name"),
    ):
        fleet.log.say(body, Role.CONTROL)
    fleet.log.say(DomainCreated(domain="umbrella", tenant="x"), Role.CONTROL, idempotency_key="k")
    fleet.log.say(DomainCreated(domain="umbrella", tenant="x"), Role.CONTROL, idempotency_key="k")
    fleet.finish()
    made = bundle(fleet.log, fleet.request)
    assert b"secret" not in made
    assert (
        first_says(made, OPERATOR.public_key) == second_says(made, OPERATOR.public_key) == VerdictKind.PROVEN
    )
