"""How holders stand to an order: nothing is called discharged without evidence, and no engine life is left out."""

from __future__ import annotations

from typing import Any

from events.fold.quota import HolderUsage, counts, evaluate
from events.ids import Role, StreamKey, Tier, Unit
from events.model.control import (
    DeletionRequested,
    DomainCreated,
    DomainScope,
    ExitAttested,
    LimitSet,
    Registered,
    TenantScope,
)
from events.model.part import Ack, Closed, RequestStanding
from events.signing import Signer
from tests.support.lookup_http import browser, service
from tests.support.reader_world import RING, Hook, World, chain_of

CHAIN = chain_of(range(320))


def order(world: World, scope: Any = None) -> int:
    return world.order(DeletionRequested(scope=scope or DomainScope(domain="default"), requester="t"))


def ack(hook: Hook, number: int) -> None:
    hook.write(events=[Ack(requests=(RequestStanding(request=number, removed=0, old_left=0),))])


def attest(world: World, worker: str, life: str) -> None:
    world.order(
        ExitAttested(worker=worker, engine_life=life, attester="s", evidence="wait status"), Role.SUPERVISOR
    )


async def shown(world: World, number: int) -> dict[str, Any]:
    async with browser(service(world=world)) as http:
        response = await http.get(f"/v1/deletions/{number}")
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def standings(document: dict[str, Any]) -> dict[str, str]:
    return {f"{h['worker']}/{h['epoch']}": h["standing"] for h in document["holders"]}


async def test_with_nobody_to_ask_nothing_is_discharged() -> None:
    world = World()
    document = await shown(world, order(world))
    assert (document["discharged_everywhere"], document["holders"]) == (None, [])


async def test_a_scope_without_a_domain_is_not_discharged() -> None:
    world = World()
    world.join()
    document = await shown(world, order(world, TenantScope(tenant="nobody")))
    assert (document["discharged_everywhere"], document["holders"]) == (None, [])


async def test_a_domain_whose_keys_are_not_here_leaves_it_open() -> None:
    world = World(domains=[("elsewhere", "default")])
    assert "elsewhere" not in RING
    hook = world.join()
    number = order(world, TenantScope(tenant="default"))
    ack(hook, number)
    document = await shown(world, number)
    assert standings(document) == {"w0/e1": "discharged"}
    assert (document["discharged_everywhere"], document["unread_domains"]) == (None, ["elsewhere"])


async def test_everybodys_ack_discharges() -> None:
    world = World()
    a, b = world.join("a"), world.join("b")
    number = order(world)
    ack(a, number)
    assert (await shown(world, number))["discharged_everywhere"] is False
    ack(b, number)
    assert (await shown(world, number))["discharged_everywhere"] is True


async def test_a_superseded_life_owes_until_its_end_is_attested() -> None:
    world = World()
    world.join("a")
    number = order(world)
    new = world.join("a", 0, "e2")
    ack(new, number)
    document = await shown(world, number)
    assert standings(document) == {"a/e1": "owes", "a/e2": "discharged"}
    assert [h["superseded"] for h in document["holders"]] == [True, False]
    assert document["discharged_everywhere"] is False
    attest(world, "a", "life-e1")
    document = await shown(world, number)
    assert (standings(document), document["discharged_everywhere"]) == ({"a/e2": "discharged"}, True)


async def test_what_a_life_discharged_before_it_was_superseded_stays_discharged() -> None:
    world = World()
    old = world.join("a")
    number = order(world)
    ack(old, number)
    ack(world.join("a", 0, "e2"), number)
    document = await shown(world, number)
    assert standings(document) == {"a/e1": "discharged", "a/e2": "discharged"}
    assert document["discharged_everywhere"] is True


async def test_a_restarted_hook_speaks_for_the_life_that_goes_on() -> None:
    world = World()
    hook = world.join("a")
    number = order(world)
    key = Signer.from_seed(b"k" * 32)
    world.order(
        Registered(
            worker="a",
            rank=0,
            epoch="e1-again",
            engine_life="life-e1",
            public_key=key.public_key,
            partition=0,
        ),
        Role.ENROLMENT,
    )
    assert StreamKey("a", 0, "e1") not in world.view.streams
    assert standings(await shown(world, number)) == {"a/e1-again": "owes"}
    assert hook.life


async def test_only_a_closed_that_ended_the_engine_is_an_end() -> None:
    world = World()
    a, b = world.join("a"), world.join("b")
    number = order(world)
    a.write(Closed(engine_ended=True))
    b.write(Closed(engine_ended=False))
    assert standings(await shown(world, number)) == {"b/e1": "owes"}


async def test_usage_is_what_quotas_are_decided_by() -> None:
    world = World(domains=[("acme", "acme")])
    a, b, c = world.join("a"), world.join("b"), world.join("c")
    for hook, held in ((a, 3), (b, 5), (c, 7)):
        hook.store(CHAIN[:held])
    stranger = World().join("w9")
    stranger.store(CHAIN[:9])
    for record in stranger.builder.sent:
        world.deliver(record.value)
    attest(world, "b", "life-e1")
    world.join("c", 0, "e2")
    world.order(DomainCreated(domain="more", tenant="default"))
    world.order(LimitSet(tenant="default", tier=Tier.GPU, unit=Unit.BLOCKS, soft=1, hard=2))
    rows = [
        HolderUsage(key, "default", tier, held.blocks, held.bytes)
        for key, stream in world.view.streams.items()
        if counts(world.registry, key)
        for (alias, tier), held in stream.state.usage.items()
        if RING.domain_of_alias(alias, key.worker, key.rank, stream.state.epoch_no) == "default"
    ]
    (quota,) = evaluate(rows, world.registry.limits, 1).values()
    async with browser(service(world=world)) as http:
        usage = (await http.get("/v1/tenants/default/usage")).json()
    assert usage["tiers"]["gpu"]["blocks"] == quota.used
    assert quota.used == 12
