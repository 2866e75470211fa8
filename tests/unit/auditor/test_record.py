"""Views of raw records: several requests share one where they want the same, and see what each would see alone."""

from __future__ import annotations

import pytest

from auditor.evidence import Evidence
from auditor.record import Views, read_record
from auditor.registry import ControlFold
from events.chain import sha256, split_lines
from events.model.control import DomainScope, ProfileScope, TenantScope
from events.signing import verify
from tests.support.audit_log import RING
from tests.support.audit_story import Story


@pytest.mark.parametrize("seed", range(5))
def test_shared_views_are_those_that_each_request_would_have_alone(seed: int) -> None:
    story = Story(seed, 0.3)
    log = story.log
    scopes = (DomainScope(domain="acme"), DomainScope(domain="umbrella"), TenantScope(tenant="acme"),
              DomainScope(domain="acme"), ProfileScope(profile=bytes(32)))  # fmt: skip
    numbers = [log.delete(scope) for scope in scopes]
    registry = ControlFold(verify)
    for offset, (value, signature) in enumerate(log.control.records):
        registry.feed(offset, value, signature)
    keys = {domain: RING[domain].alias_key for domain in RING}
    every = [Evidence(registry.requests[number], registry, keys, verify) for number in numbers]
    shared = 0
    for partition, records in log.events.items():
        for offset, raw in enumerate(records):
            views = Views(partition, offset, raw.value, raw.signature, sha256(split_lines(raw.value)[0]))
            made = []
            for evidence in every:
                made.append(views.of(evidence.wanted))
                assert made[-1] == read_record(partition, offset, raw.value, raw.signature, evidence.wanted)
                evidence.feed(made[-1])
            shared += len(made) - len({id(one) for one in made})
    assert shared > 0
