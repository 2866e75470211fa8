"""Partitions have no order among each other: in whichever order they are read, one log has one verdict, and the bundle
that is made of it holds under both verifiers."""

from __future__ import annotations

from collections import Counter

from auditor.verdict import judge
from events.ids import VerdictKind
from events.model.control import PrefixScope
from events.model.part import BlockEvicted
from tests.support.audit_log import AuditLog
from tests.support.bundle import INVALID, OPERATOR, bundle, first_says, second_says
from tests.support.hostile_story import HostileStory
from tests.support.log import block


def test_writers_who_stop_at_nothing_get_one_verdict_from_everybody() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        story = HostileStory(seed, 0.2)
        log, request = story.log, story.request
        verdict = log.verdict(request)
        assert judge(log.evidence(request, backwards=True), log.frontier()) == verdict, seed
        made = bundle(log, request)
        said = first_says(made, OPERATOR.public_key), second_says(made, OPERATOR.public_key)
        assert said == (verdict.kind, verdict.kind), seed
        seen[verdict.kind] += 1
    assert INVALID not in seen
    assert seen[VerdictKind.PROVEN] >= 1
    assert len(seen) >= 3


def test_an_ancestor_is_known_wherever_it_was_told_when_endings_are_counted() -> None:
    """What was evicted is a child of a block that another worker shows to have nothing to do with the prefix."""
    log = AuditLog()
    near, far = log.hook("w0").open(), log.hook("w10").open()
    far.store("acme", 2, admitted=3)
    far.say_state()
    near.store("acme", 3, parent=block("acme", 2), admitted=3)
    request = log.delete(PrefixScope(domain="acme", ids=(block("acme", 1),)))
    near.write(parts={"acme": [BlockEvicted(holder="gpu", group=0, ids=(block("acme", 3),))]})
    near.held.clear()
    for hook in (near, far):
        hook.ack(request, "acme")
    nonce = log.nonce(request)
    for hook in (near, far):
        hook.ack(request, "acme", nonce=nonce)
    verdict = log.verdict(request)
    assert (verdict.kind, verdict.evicted) == (VerdictKind.PROVEN, 0)
    assert judge(log.evidence(request, backwards=True), log.frontier()) == verdict
    assert second_says(bundle(log, request), OPERATOR.public_key) == VerdictKind.PROVEN
