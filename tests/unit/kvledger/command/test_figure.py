"""What `kvledger status` says of a lookup service's canary and bounds."""

from __future__ import annotations

import json

from kvledger.command.figure import document_of, lines_of, parse, read_figures
from tests.support.lookup_http import browser, service

PAGE = """\
# TYPE kvledger_canary_measured_staleness_seconds gauge
kvledger_canary_measured_staleness_seconds 0.0123
# TYPE kvledger_canary_reported_staleness_seconds gauge
kvledger_canary_reported_staleness_seconds 0.25
# TYPE kvledger_canary_running gauge
kvledger_canary_running 1.0
# TYPE kvledger_canary_violations_total counter
kvledger_canary_violations_total 0.0
# TYPE kvledger_held gauge
kvledger_held{kind="beacons"} 4096.0
kvledger_held{kind="copies"} 90.0
kvledger_held{kind="orders"} 7.0
kvledger_held{kind="watchers"} 1.0
# TYPE kvledger_held_bound gauge
kvledger_held_bound{kind="beacons"} 4096.0
kvledger_held_bound{kind="copies"} 100.0
kvledger_held_bound{kind="orders"} +Inf
kvledger_held_bound{kind="watchers"} 64.0
# TYPE kvledger_cut_off_total counter
kvledger_cut_off_total{reason="watcher_too_slow"} 2.0
kvledger_cut_off_total{reason="head_too_slow"} 0.0
# TYPE kvledger_shed_streams_total counter
kvledger_shed_streams_total 3.0
# TYPE kvledger_troubled_streams gauge
kvledger_troubled_streams{trouble="gap"} 0.0
kvledger_troubled_streams{trouble="unknown_events"} 2.0
"""


def test_the_canary_and_what_is_near_a_bound_are_named() -> None:
    assert lines_of(parse(PAGE)) == [
        "Canary     true staleness 12 ms at most, reported 250 ms",
        "Bounds     copies 90 of 100",
        "Streams    unknown events 2; /v1/workers names them",
        "Given up   watcher too slow 2, shed streams 3",
    ]
    silent = parse(PAGE.replace('{trouble="gap"} 0.0', '{trouble="unpublished"} 1.0'))
    assert "Engines    ALARM: 1 serve requests" in lines_of(silent)[3]
    alarmed = parse(PAGE.replace("violations_total 0.0", "violations_total 2.0"))
    assert lines_of(alarmed)[0].endswith("; ALARM: 2 times fresher than true")


def test_the_document_is_json_without_infinities() -> None:
    document = document_of(parse(PAGE))
    assert document is not None
    json.dumps(document, allow_nan=False)
    assert document["held"]["orders"] == {"now": 7.0, "bound": None}


def test_no_service_is_no_figures() -> None:
    assert read_figures("") is None
    assert read_figures("http://127.0.0.1:9") is None
    assert (document_of(None), lines_of(None)) == (None, [])


async def test_a_services_own_page_is_understood() -> None:
    async with browser(service()) as http:
        found = parse((await http.get("/metrics")).text)
    assert found.held["copies"] == (10.0, 20_000_000.0)
    assert lines_of(found)[0].startswith("Canary     starting, or off")
    json.dumps(document_of(found), allow_nan=False)
