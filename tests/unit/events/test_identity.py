"""Block ids, profiles, salts, keys: equal exactly when the tensors are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.errors import IdentityError
from events.identity import (
    BlockHasher,
    Extra,
    bound_salt_hmac,
    make_salt,
    pack_tokens,
    profile_digest,
    root_parent,
    salt_domain,
    salt_holds,
)
from events.keyring import DomainKeys, KeyRing, load_keyring, with_domain
from events.model.profile import MANDATORY, ContentProfile, LayoutProfile, transfer_compatible
from tests.support.log import PROFILE

KEY = bytes(range(32))


@given(
    st.lists(st.integers(0, (1 << 32) - 1), max_size=100),
    st.integers(1, 16),
    st.binary(min_size=16, max_size=16),
)
def test_a_chain_is_the_same_block_by_block(tokens: list[int], size: int, parent: bytes) -> None:
    hasher = BlockHasher(KEY)
    packed = pack_tokens(tokens)
    ids = hasher.chain(parent, packed, size)
    assert len(ids) == len(tokens) // size
    for index, block in enumerate(ids):
        parent = hasher.block_id(parent, packed[index * size * 4 : (index + 1) * size * 4])
        assert parent == block


def test_extras_keys_and_parents_all_change_an_id() -> None:
    hasher, packed = BlockHasher(KEY), pack_tokens(range(4))
    image = Extra(modality=(("img", -2),)).to_bytes()
    plain = hasher.chain(bytes(16), packed, 4)
    assert (
        len(
            {
                plain[0],
                hasher.chain(bytes(16), packed, 4, [image])[0],
                hasher.chain(b"\x01" * 16, packed, 4)[0],
                BlockHasher(bytes(32)).chain(bytes(16), packed, 4)[0],
            }
        )
        == 4
    )
    assert Extra().to_bytes() == b""
    with pytest.raises(IdentityError):
        hasher.chain(bytes(16), packed, 2, [b""])


@pytest.mark.parametrize("bad", [[-1], [1 << 32], ["a"], [1.5], [None]])
def test_only_u32_are_tokens(bad: list[object]) -> None:
    with pytest.raises(IdentityError):
        pack_tokens(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", sorted(ContentProfile.model_fields))
def test_profiles_that_differ_in_any_field_never_share_a_root(field: str) -> None:
    other = PROFILE.model_copy(update={field: 32 if field == "block_tokens" else "other"})
    assert root_parent(profile_digest(other)) != root_parent(profile_digest(PROFILE))


@pytest.mark.parametrize("field", MANDATORY)
def test_a_missing_mandatory_field_makes_a_profile_unverified(field: str) -> None:
    assert PROFILE.missing() == ()
    assert PROFILE.model_copy(update={field: None}).missing() == (field,)


def test_an_adapter_without_revision_is_unverified() -> None:
    assert PROFILE.model_copy(update={"adapter": "a"}).missing() == ("adapter_revision",)


def test_layouts_are_compatible_when_every_field_agrees() -> None:
    assert transfer_compatible(LayoutProfile(tp_size=2), LayoutProfile(tp_size=2))
    assert not transfer_compatible(LayoutProfile(tp_size=2), LayoutProfile())


def test_a_salt_names_its_domain_and_only_its_key_made_it() -> None:
    keys = DomainKeys.from_secret("acme/al.ice", KEY)
    salt = make_salt(keys.salt_key, "acme/al.ice")
    ring = KeyRing({"acme/al.ice": KEY, "other": bytes(32)})
    assert salt_domain(salt) == "acme/al.ice"
    assert ring.domain_of_salt(salt) == "acme/al.ice"
    forged = make_salt(ring["other"].salt_key, "acme/al.ice")
    for bad in (forged, salt[:-1] + "0", "kvl1.acme", "kvl1..x", "tenant-a", ""):
        assert ring.domain_of_salt(bad) is None or bad == salt
    assert not salt_holds(keys.salt_key, forged)
    assert len(bound_salt_hmac(keys.salt_key, "tenant-a")) == 32


def test_aliases_differ_by_stream_and_epoch_and_lead_back_by_key_only() -> None:
    ring = KeyRing({"a": KEY, "b": bytes(32)})
    alias = ring["a"].alias("w", 0, 7)
    assert (
        len({alias, ring["b"].alias("w", 0, 7), ring["a"].alias("w", 1, 7), ring["a"].alias("w", 0, 8)}) == 4
    )
    assert ring.domain_of_alias(alias, "w", 0, 7) == "a"
    assert ring.domain_of_alias(alias, "w", 0, 8) is None


def test_derived_keys_are_apart_and_never_shown() -> None:
    keys = DomainKeys.from_secret("a", KEY)
    assert len({keys.id_key, keys.salt_key, keys.alias_key, KEY}) == 4
    assert KEY.hex() not in repr(keys)
    assert keys.id_key.hex() not in repr(keys)


def test_a_ring_follows_its_file(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    path.write_text(with_domain("", "a", KEY))
    ring = load_keyring(path)
    assert list(ring) == ["a"]
    before = dict(ring.aliases("w", 0, 1))
    path.write_text(with_domain(path.read_text(), "b", bytes(32)))
    assert sorted(ring) == ["a", "b"]
    assert len(ring.aliases("w", 0, 1)) == 2
    assert before.items() <= dict(ring.aliases("w", 0, 1)).items()
    path.write_text("{")
    assert sorted(ring) == ["a", "b"]
    path.write_text(with_domain("", "b", bytes(32)))
    with pytest.raises(KeyError):
        ring["a"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"domains": {"a": "zz"}}', '{"domains": {"a": "00"}}'])
def test_a_bad_ring_is_named_without_its_secrets(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ring.json"
    path.write_text(text)
    with pytest.raises(IdentityError):
        load_keyring(path)


def test_golden_block_ids() -> None:
    vectors = json.loads(Path("tests/golden/events/block_ids.json").read_text())
    for vector in vectors["profiles"]:
        profile = ContentProfile.model_validate_json(json.dumps(vector["profile"]))
        assert profile_digest(profile) == vector["digest"]
    for vector in vectors["chains"]:
        extras = [
            Extra(tuple((i, o) for i, o in e["mm"]), tuple(e["pe"])).to_bytes() for e in vector["extras"]
        ]
        keys = DomainKeys.from_secret(vector["domain"], bytes.fromhex(vector["secret"]))
        assert keys.id_key.hex() == vector["id_key"]
        ids = keys.hasher().chain(
            bytes.fromhex(vector["root"]),
            pack_tokens(vector["tokens"]),
            vector["block_tokens"],
            extras or None,
        )
        assert [x.hex() for x in ids] == vector["ids"]
