"""What `holder encrypted`, `key rings` and `attest key-destroyed` refuse, and what they show."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from events.chain import store_alias
from events.fold.registry import Registry
from events.ids import Role, Tier
from events.keyring import storage_key_id
from events.model.control import ControlBody, DomainCreated, HolderEnrolled
from events.signing import key_id, verify
from kvledger.cli import make_app
from kvledger.command.storage_key import NOBODYS, declarations, listing, refusal, rows_of
from kvledger.failure import CommandError, ExitCode
from tests.support.audit_log import RING
from tests.support.encrypted_store import STORE, gone, listed
from tests.support.log import ControlLog

LOG = ControlLog()
SUPERVISOR = LOG.signers[Role.SUPERVISOR].public_key
KEY = storage_key_id("k")
BASE: tuple[tuple[ControlBody, Role], ...] = (
    (DomainCreated(domain="acme", tenant="acme"), Role.CONTROL),
    (HolderEnrolled(durable_id=STORE, tier=Tier.DISK, owner="w0"), Role.ENROLMENT),
)


def folded(*told: tuple[ControlBody, Role]) -> Registry:
    log, registry = ControlLog(), Registry(verify)
    for body, role in (*BASE, *told):
        log.append(body, role)
    for offset, (value, signature) in enumerate(log.records):
        registry.fold(offset, value, signature)
    return registry


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("holder", "encrypted", "d", "--key", "k"), "--domain"),
        (("holder", "encrypted", "d", "--rest"), "give --key"),
        (("holder", "encrypted", "d", "--rest", "--key", "k", "--unencrypted"), "not both"),
        (("key", "rings", "--ring", "a"), "name the key"),
        (("key", "rings", "k", "--ring", "a=xyz"), "64 hex"),
        (("key", "rings", "k", "--ring", "two words"), "ring"),
        (("key", "rings", "k", "--ring", "a", "--ring", "a"), "named twice"),
        (("attest", "key-destroyed", "k", "--ring", "two words", "--evidence", "x"), "ring"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_reached(arguments: tuple[str, ...], said: str) -> None:
    error = CliRunner().invoke(make_app(), list(arguments)).exception
    assert isinstance(error, CommandError), error
    assert said in error.message
    assert error.exit_code == ExitCode.USAGE


def test_a_list_names_who_alone_may_attest() -> None:
    body = listing("k", ["a", f"b={SUPERVISOR.hex()}"])
    assert [(one.ring, one.attester) for one in body.rings] == [("a", None), ("b", SUPERVISOR)]
    assert body.key == KEY


def test_what_the_command_takes_the_registry_obeys_and_the_other_way_round() -> None:
    lists = (listed("k", "a", "b"), Role.CONTROL)
    theirs = (listed("k", "a", attester=bytes(32)), Role.CONTROL)
    ended = (gone("k", "a"), Role.SUPERVISOR)
    for before, good in (((), False), ((lists,), True), ((theirs,), False), ((lists, ended, lists), True)):
        why = refusal(folded(*before).storage_keys.get(KEY), gone("k", "a"), SUPERVISOR)
        assert (why is None) == good
        after = folded(*before, ended)
        assert (KEY in after.storage_keys and "a" not in after.storage_keys[KEY].left) == good
    again = refusal(folded(lists, ended).storage_keys[KEY], gone("k", "a"), SUPERVISOR)
    assert again is not None
    assert "already" in again.message


def test_rings_are_shown_with_what_became_of_the_key() -> None:
    lists = (listed("k", "a", "b", attester=SUPERVISOR), Role.CONTROL)
    registry = folded(lists, (gone("k", "b"), Role.SUPERVISOR), (listed("other", "a"), Role.CONTROL))
    assert len(rows_of(registry)) == 3
    rows = rows_of(registry, KEY)
    assert [(row["ring"], row["destroyed_at"] is None) for row in rows] == [("a", True), ("b", False)]
    assert {row["attester"] for row in rows} == {key_id(SUPERVISOR)}


def test_each_domain_is_declared_by_its_name_in_the_store_and_the_rest_by_none() -> None:
    told = declarations(folded(), RING, STORE, KEY, [], every=True, rest=True)
    assert [(name, body.alias) for name, body in told] == [
        ("acme", store_alias(RING["acme"].alias_key, STORE)),
        (NOBODYS, None),
    ]
    assert {body.key for _, body in told} == {KEY}


def test_a_declaration_that_would_come_to_nothing_is_refused() -> None:
    with pytest.raises(CommandError, match="nobody is enrolled"):
        declarations(folded(), RING, "disk-9", KEY, ["acme"], every=False, rest=False)
    with pytest.raises(CommandError, match="no domain umbrella"):
        declarations(folded(), RING, STORE, KEY, ["umbrella"], every=False, rest=False)
