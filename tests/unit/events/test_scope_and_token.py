"""Scopes cover what they say with all descendants; tokens are opaque, comparable and refuse forgeries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.model.control import (
    DomainScope,
    IdsScope,
    PrefixScope,
    ProfileScope,
    Scope,
    SubjectScope,
    TenantScope,
)
from events.scope import covers_domain, visible_length
from events.token import Token, TokenError
from events.topic import pinned_partition

CHAIN = [bytes([n]) * 16 for n in range(5)]
PROFILE = "ab" * 32


@pytest.mark.parametrize(
    ("scope", "domain", "owner", "covered"),
    [
        (TenantScope(tenant="t"), "d", "t", True),
        (TenantScope(tenant="t"), "t", "other", False),
        (TenantScope(tenant="t"), "d", None, False),
        (DomainScope(domain="d"), "d", "t", True),
        (DomainScope(domain="d"), "d/alice", "t", False),
        (SubjectScope(domain="d", subject="alice"), "d/alice", "t", True),
        (SubjectScope(domain="d", subject="alice"), "d", "t", False),
        (SubjectScope(domain="d", subject="alice", pseudonym=bytes(32), leaves=(CHAIN[0],)), "d", "t", True),
        (
            SubjectScope(domain="d", subject="alice", pseudonym=bytes(32), leaves=(CHAIN[0],)),
            "d/alice",
            "t",
            True,
        ),
        (SubjectScope(domain="d", subject="alice", pseudonym=bytes(32), leaves=(CHAIN[0],)), "e", "t", False),
        (PrefixScope(domain="d", ids=(CHAIN[0],)), "d", "t", True),
        (IdsScope(domain="d", ids=(CHAIN[0],)), "e", "t", False),
        (ProfileScope(profile=bytes(32)), "any", None, True),
    ],
)
def test_domains_covered(scope: Scope, domain: str, owner: str | None, covered: bool) -> None:
    assert covers_domain(scope, domain, owner) is covered


@pytest.mark.parametrize(
    ("scope", "visible"),
    [
        (TenantScope(tenant="t"), 0),
        (DomainScope(domain="d"), 0),
        (PrefixScope(domain="d", ids=tuple(CHAIN[:3])), 2),
        (IdsScope(domain="d", ids=(CHAIN[4], CHAIN[1])), 1),
        (IdsScope(domain="d", ids=(bytes(15) + b"x",)), 5),
        (SubjectScope(domain="d", subject="alice", pseudonym=bytes(32), leaves=(CHAIN[3],)), 3),
        (ProfileScope(profile=bytes.fromhex(PROFILE)), 0),
        (ProfileScope(profile=bytes(32)), 5),
    ],
)
def test_everything_behind_the_first_block_in_scope_is_hidden(scope: Scope, visible: int) -> None:
    assert visible_length(scope, "d", CHAIN, PROFILE) == visible


def test_a_subjects_own_sub_domain_is_hidden_whole_and_its_leaves_elsewhere() -> None:
    scope = SubjectScope(domain="d", subject="alice", pseudonym=bytes(32), leaves=(CHAIN[3],))
    assert visible_length(scope, "d/alice", CHAIN, PROFILE) == 0
    assert visible_length(scope, "d", CHAIN, PROFILE) == 3


@given(st.lists(st.integers(0, (1 << 62) - 1), max_size=20), st.integers(0, (1 << 62) - 1))
def test_tokens_round_trip(events: list[int], control: int) -> None:
    token = Token("log-1", tuple(events), control)
    assert Token.decode(token.encode()) == token
    assert token.reached_by(token)


def test_a_token_is_reached_when_every_position_is() -> None:
    token = Token("l", (3, 5), 2)
    assert token.reached_by(Token("l", (3, 6, 9), 2))
    assert not token.reached_by(Token("l", (3, 4), 2))
    assert not token.reached_by(Token("l", (3,), 9))
    assert not token.reached_by(Token("l", (9, 9), 1))


@pytest.mark.parametrize("text", ["", "kvt1.", "kvt1.!!", "kvt1.e30", "x" * 30, "kvt1." + "A" * 30_000])
def test_no_other_string_is_a_token(text: str) -> None:
    with pytest.raises(TokenError):
        Token.decode(text)


def test_pinned_partitions_are_stable_and_spread() -> None:
    assert [pinned_partition(f"w{n}", 0, 8) for n in range(4)] == [
        pinned_partition(f"w{n}", 0, 8) for n in range(4)
    ]
    assert len({pinned_partition(f"worker-{n}", n % 2, 8) for n in range(64)}) == 8


@pytest.mark.parametrize("scope", [IdsScope, PrefixScope])
def test_a_scope_of_no_ids_is_no_scope(scope: type[IdsScope] | type[PrefixScope]) -> None:
    with pytest.raises(ValueError, match="ids"):
        scope(domain="d", ids=())
