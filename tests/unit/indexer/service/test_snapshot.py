"""A snapshot gives another replica the same fold; one that was touched gives nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from events.fold.digest import index_digest
from events.fold.registry import Registry
from events.ids import Role, Tier
from events.model.part import Ack, RequestStanding
from events.signing import Signer, verify
from indexer.service.snapshot import SIGNED, SnapshotRefusedError, read_snapshot, write_snapshot
from indexer.store import Snapshot
from router_client.view import LocalView
from tests.support.log import StreamBuilder, block, opened
from tests.support.lookup_http import CREDENTIALS, browser, kind, service
from tests.support.reader_world import RING, World, chain_of

TOPIC = "kv.events"
TOKENS = list(range(320))
LAST = bytes(range(32))


def fleet() -> World:
    """Two tiers, an order acked by an epoch that was superseded, a gap, and a stranger."""
    world = World()
    two = world.join("w0", 0, "e1", Tier.GPU, Tier.CPU)
    two.store(chain_of(TOKENS)[:12])
    two.store(chain_of(TOKENS)[:3], holder="cpu")
    old = world.join("w1")
    old.store(chain_of(TOKENS)[:5])
    old.write(events=[Ack(requests=(RequestStanding(request=2, removed=0, old_left=0),))])
    world.join("w1", 0, "e2").store(chain_of(TOKENS)[:7])
    broken = world.join("w2")
    broken.builder.burn()
    broken.store(chain_of(TOKENS)[:2])
    world.deliver(StreamBuilder("stranger").seal(opened()).value)
    two.store([block(number) for number in range(4_500)])
    return world


async def written(view: LocalView, signer: Signer) -> list[bytes]:
    return [line async for line in write_snapshot(view, TOPIC, signer, {0: LAST})]


async def read(lines: list[bytes], registry: Registry, *, cut: int = 977, **more: Any) -> Snapshot:
    async def chunks() -> AsyncIterator[bytes]:
        whole = b"".join(lines)
        for at in range(0, len(whole), cut):
            yield whole[at : at + cut]

    return await read_snapshot(chunks(), registry, TOPIC, **{"max_copies": 1_000_000, **more})


async def test_another_replica_has_the_same_fold_and_goes_on_from_it() -> None:
    world = fleet()
    control = world.log.signers[Role.CONTROL]
    found = await read(await written(world.view, control), world.registry)
    view = LocalView("b", world.registry, RING, control_current_ns=lambda: world.now_ns)
    view.restore(found.states, found.positions)
    assert found.last_sha256 == {0: LAST}
    known = {key for key in world.view.streams if key in world.registry.registrations}
    assert view.streams.keys() == known
    assert view.positions == world.view.positions
    assert view.former.keys() == world.view.former.keys() != set()
    digests = [
        index_digest([each.streams[key].state for key in known], world.registry)
        for each in (view, world.view)
    ]
    assert digests[0] == digests[1]
    assert view.copies == sum(world.view.streams[key].copy_count for key in known)


async def test_records_that_are_newer_than_the_positions_are_redelivered_without_harm() -> None:
    world = World()
    hook = world.join()
    hook.store(chain_of(TOKENS)[:3])
    lines: list[bytes] = []
    async for line in write_snapshot(world.view, TOPIC, world.log.signers[Role.CONTROL], {0: LAST}):
        lines.append(line)
        if len(lines) == 1:
            hook.store(chain_of(TOKENS)[3:6], parent=chain_of(TOKENS)[2])
    found = await read(lines, world.registry)
    view = LocalView("b", world.registry, RING, control_current_ns=lambda: world.now_ns)
    view.restore(found.states, found.positions)
    for offset, record in enumerate(hook.builder.sent):
        view.apply_record(0, offset, record.value, world.now_ns)
    assert index_digest([s.state for s in view.streams.values()], world.registry) == index_digest(
        [s.state for s in world.view.streams.values()], world.registry
    )


def resealed(lines: list[bytes], signer: Signer) -> list[bytes]:
    """A liar's end: right in itself."""
    digest = hashlib.sha256(b"".join(lines[:-1])).digest()
    end = json.loads(lines[-1]) | {
        "lines": len(lines) - 1,
        "sha256": {"b": digest.hex()},
        "signer": signer.id,
        "signature": {"b": signer.sign(SIGNED + digest).hex()},
    }
    return [*lines[:-1], json.dumps(end).encode() + b"\n"]


def edited(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b'"next_seq":', b'"next_seq":1', 1) for line in lines]


STRANGER = Signer.from_seed(b"s" * 32)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines: lines[:-1], "it is cut"),
        (lambda lines: [*lines[:-1], lines[-1][:-5]], "it is cut"),
        (lambda lines: [*lines[:-2], lines[-1]], "checksum"),
        (edited, "checksum"),
        (lambda lines: [lines[0], lines[0], *lines[1:]], "unknown kind"),
        (lambda lines: [*lines, lines[1]], "goes on after its end"),
        (lambda lines: resealed(edited(lines), STRANGER), "no control grant"),
        (lambda lines: [lines[0].replace(b"log-test", b"log-else"), *lines[1:]], "another log"),
        (lambda lines: [lines[0].replace(b'"v":2', b'"v":1'), *lines[1:]], "this version"),
        (lambda lines: [b"garbage\n"], "can't be read"),
        (lambda lines: [b"[" * 100_000 + b"\n"], "can't be read"),
        (lambda lines: [b"x" * (9 << 20)], "too long"),
        (lambda lines: [], "it is cut"),
    ],
)
async def test_one_that_was_touched_is_refused(
    change: Callable[[list[bytes]], list[bytes]], why: str
) -> None:
    world = fleet()
    lines = await written(world.view, world.log.signers[Role.CONTROL])
    with pytest.raises(SnapshotRefusedError) as refused:
        await read(change(lines), world.registry, cut=100_000)
    assert why in refused.value.reason


async def test_one_that_is_too_large_or_rests_on_another_control_log_is_refused() -> None:
    world = fleet()
    lines = await written(world.view, world.log.signers[Role.CONTROL])
    with pytest.raises(SnapshotRefusedError, match="more copies"):
        await read(lines, world.registry, max_copies=10)
    behind = Registry(verify)
    for offset, (value, signature) in enumerate(world.log.records[:5]):
        behind.fold(offset, value, signature)
    with pytest.raises(SnapshotRefusedError, match=r"another kv\.control"):
        await read(lines, behind)


@pytest.mark.parametrize(
    ("token", "status"),
    [(None, 401), ("router", 403), ("acme", 403), ("auditor", 403), ("everywhere", 200), ("operator", 200)],
)
async def test_only_who_may_read_every_domain_gets_one(token: str | None, status: int) -> None:
    world = World(domains=[("acme", "acme")])
    world.join().store(chain_of(TOKENS)[:5])
    made = service(world=world, credentials=CREDENTIALS)
    made.config.signers[Role.CONTROL] = world.log.signers[Role.CONTROL]
    made.feed.state.ends = {}
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with browser(made) as http:
        response = await http.get("/v1/snapshot", headers=headers)
    assert response.status_code == status
    if status == 200:
        found = await read([response.content], made.view.registry)
        assert [len(state.copies["gpu", 0]) for _, state in found.states] == [5]


async def test_a_replica_that_is_not_caught_up_or_has_no_key_gives_none() -> None:
    made = service()
    async with browser(made) as http:
        keyless = await http.get("/v1/snapshot")
        assert (keyless.status_code, kind(keyless)) == (403, "forbidden")
        made.config.signers[Role.CONTROL] = STRANGER
        behind = await http.get("/v1/snapshot")
        assert (behind.status_code, kind(behind)) == (503, "index-unavailable")
