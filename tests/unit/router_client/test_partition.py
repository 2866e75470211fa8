"""A stream lives in the partition that its registration pins; what anybody writes elsewhere changes nothing."""

from __future__ import annotations

import json

from tests.support.log import StreamBuilder, opened
from tests.support.reader_world import World, chain_of, lengths, reasons

CHAIN = chain_of(range(64))


def test_a_record_in_a_foreign_partition_changes_nothing() -> None:
    world = World()
    a = world.join("a")
    a.store(CHAIN[:1])
    a.hold = True
    genuine = a.store(CHAIN[1:2], CHAIN[0])
    head, _, rest = genuine.partition(b"\n")
    forged = json.dumps(json.loads(head) | {"v": 9}).encode() + b"\n" + rest
    assert world.view.apply_record(2, 0, forged, world.now_ns) is None
    assert world.view.apply_record(2, 1, genuine, world.now_ns) is None
    a.release()
    world.round(a)
    found = world.get(CHAIN)
    assert (lengths(found), reasons(found)) == ({"a": 2}, {})


def test_a_name_taken_in_another_partition_before_its_registration_is_given_back() -> None:
    world = World()
    squatter = StreamBuilder("a", 0, "e1", 1, bytes(32))
    world.view.apply_record(2, 0, squatter.seal(opened()).value, world.now_ns)
    a = world.join("a")
    a.store(CHAIN[:3])
    world.round(a)
    assert lengths(world.get(CHAIN)) == {"a": 3}
