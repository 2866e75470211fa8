"""An engine that serves and never publishes is an alarm with a reason, never an empty index."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from events.codec import dump
from events.ids import Alarm, Basis
from events.model.signal import RankPulse
from tests.support.lookup_http import ASKED, TOKENS, browser, service
from tests.support.reader_world import World, chain_of

CHAIN = chain_of(TOKENS)


async def test_it_is_named_in_answers_in_the_list_of_workers_and_in_the_metrics() -> None:
    world = World()
    well, mute = world.join("well"), world.join("mute")
    well.store(CHAIN[:4])
    world.round(well, mute)
    mute.pulse(alarm=Alarm.UNPUBLISHED)
    async with browser(service(world=world)) as http:
        answer = (await http.post("/v1/lookup", json=ASKED)).json()
        workers = (await http.get("/v1/workers")).json()["workers"]
        page = (await http.get("/metrics")).text
        forced = (await http.post("/v1/lookup", json={**ASKED, "on_stale": "include"})).json()
        alone = await http.post("/v1/lookup", json={**ASKED, "candidates": ["mute"]})
    assert [(one["worker"], one["reason"]) for one in answer["excluded"]] == [("mute", "unpublished")]
    assert answer["complete"] is False
    # What was never told was never true, so nothing overrides it.
    assert [match["worker"] for match in forced["matches"]] == ["well"]
    assert alone.status_code == 503
    assert {row["worker"]: row["troubles"] for row in workers} == {"well": [], "mute": ["unpublished"]}
    told = {
        sample.labels["trouble"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "kvledger_troubled_streams"
    }
    assert told["unpublished"] == 1
    mute.pulse()
    async with browser(service(world=world)) as http:
        assert (await http.post("/v1/lookup", json=ASKED)).json()["excluded"] == []


def test_a_pulse_without_an_alarm_is_written_as_it_always_was() -> None:
    pulse = RankPulse(rank=0, epoch="e", next_seq=1, prev=bytes(32), basis=Basis.PUBLISHED)
    assert b"alarm" not in dump(pulse)
    assert b'"alarm":"unpublished"' in dump(pulse.model_copy(update={"alarm": Alarm.UNPUBLISHED}))
