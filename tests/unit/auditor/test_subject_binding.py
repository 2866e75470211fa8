"""Which leaves a subject's request is told of."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from auditor.registry import ControlFold
from events.chain import sha256
from events.fold.registry import Registry
from events.ids import Role
from events.model.audit import SubjectBound
from events.model.control import Granted, Revoked
from events.signing import Signer, verify
from events.subject import Bindings
from events.subject import Granted as GrantOf
from tests.support.log import ControlLog

GATEWAY = Signer.from_seed(sha256(b"gateway"))
Fold = Callable[[ControlLog], Iterable[GrantOf]]
LEAF, WHO = bytes(15) + b"1", sha256(b"patient 17")


def audited(log: ControlLog) -> Iterable[GrantOf]:
    fold = ControlFold(verify)
    for offset, (value, signature) in enumerate(log.records):
        fold.feed(offset, value, signature)
    return fold.grants.values()


def indexed(log: ControlLog) -> Iterable[GrantOf]:
    registry = Registry(verify)
    for offset, (value, signature) in enumerate(log.records):
        registry.fold(offset, value, signature)
    return registry.grants.values()


def bound(log: ControlLog, fold: Fold) -> set[bytes]:
    bindings = Bindings.of("acme", WHO, fold(log), verify)
    value = SubjectBound(subject=WHO, domain="acme", leaves=(LEAF,)).model_dump_json().encode()
    bindings.take(value, GATEWAY.sign(value))
    return bindings.leaves


@pytest.mark.parametrize("fold", [audited, indexed])
def test_what_a_key_has_bound_stays_bound_whatever_it_may_say_later(fold: Fold) -> None:
    log, key = ControlLog(), GATEWAY.public_key
    assert bound(log, fold) == set()
    log.append(Granted(public_key=key, roles=(Role.CONTROL,), label="gateway"), Role.OPERATOR)
    assert bound(log, fold) == {LEAF}
    log.append(Granted(public_key=key, roles=(Role.AUDITOR,), label="auditor"), Role.OPERATOR)
    assert bound(log, fold) == {LEAF}
    log.append(Granted(public_key=key, roles=(Role.SUPERVISOR,), label="x"), Role.OPERATOR)
    log.append(Revoked(public_key=key), Role.OPERATOR)
    assert bound(log, fold) == {LEAF}


def test_what_such_a_key_signed_and_nobody_can_read_is_told_apart_from_what_strangers_wrote() -> None:
    log = ControlLog()
    log.append(Granted(public_key=GATEWAY.public_key, roles=(Role.CONTROL,), label="gateway"), Role.OPERATOR)
    bindings, newer = Bindings.of("acme", WHO, audited(log), verify), b'{"v":2}'
    bindings.take(newer, None)
    bindings.take(newer, Signer.from_seed(sha256(b"stranger")).sign(newer))
    assert (bindings.ignored, bindings.unread) == (2, 0)
    bindings.take(newer, GATEWAY.sign(newer))
    assert (bindings.ignored, bindings.unread) == (3, 1)
