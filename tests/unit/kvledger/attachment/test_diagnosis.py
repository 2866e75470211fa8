"""Every cause by what shows it, and agreement only where both found the same and found something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from events.model.profile import ContentProfile
from kvledger.attachment.address import RankAddress
from kvledger.attachment.bridge_settings import BridgeSettings
from kvledger.attachment.diagnosis import Cause, Findings, Prediction, diagnose
from kvledger.attachment.metric_page import Sample
from kvledger.attachment.probe import Sent, Wire
from kvledger.attachment.report import EngineReport, EventSource, ServedModel

AT = "tcp://127.0.0.1:5557"
REPORT = EngineReport(
    url="http://127.0.0.1:8000",
    models=(ServedModel(id="tiny"),),
    version="0.32.0",
    sources={0: EventSource(topic="t")},
    cache={0: {"enable_prefix_caching": "True", "block_size": "16", "prefix_caching_hash_algo": "sha256"}},
)
BRIDGE = BridgeSettings(
    worker="w0",
    rank=0,
    model="tiny",
    domain="default",
    endpoint=AT,
    replay=None,
    topic="t",
    url=REPORT.url,
    hash_algorithm="sha256",
    content=ContentProfile(model="tiny"),
)
HEARD = Wire(True, ("t",), True, 16, "t")
WELL = Findings(
    report=REPORT,
    rank=0,
    learned=ContentProfile(model="tiny", block_tokens=16),
    source=RankAddress(0, AT, None, "t"),
    row={"worker": "w0", "dp_rank": 0, "troubles": []},
    bridge=BRIDGE,
    prediction=Prediction(64, 100.0, "published", "unverified"),
    delivered=Sent(73, 64, "usage"),
    wire=HEARD,
)


def labelled(**labels: str) -> EngineReport:
    return replace(REPORT, cache={0: {**REPORT.cache[0], **labels}})


def bridge(**fields: Any) -> BridgeSettings:
    return BRIDGE.model_copy(update=fields)


NOTHING = Prediction(0, 100.0, "published", "unverified")
LESS = Sent(73, 48, "usage")

CASES: list[tuple[str, Cause, dict[str, Any]]] = [
    (
        "no caching",
        Cause.PREFIX_CACHING_OFF,
        {"report": labelled(enable_prefix_caching="False"), "delivered": Sent(73, 0)},
    ),
    ("no publisher", Cause.PUBLISHER_OFF, {"report": replace(REPORT, sources={}), "prediction": NOTHING}),
    (
        "nobody listens",
        Cause.PORT,
        {"prediction": Prediction(reason="unpublished"), "wire": Wire(listening=False)},
    ),
    ("another engine's port", Cause.PORT, {"prediction": NOTHING, "wire": Wire(True, ("other",))}),
    ("a port where nothing comes", Cause.PORT, {"prediction": NOTHING, "wire": Wire(True)}),
    (
        "an older engine whose port is silent",
        Cause.PUBLISHER_OFF,
        {"report": replace(REPORT, sources=None), "source": None, "prediction": NOTHING, "wire": Wire(True)},
    ),
    ("no bridge", Cause.NOT_ATTACHED, {"row": None, "bridge": None, "prediction": Prediction()}),
    (
        "the bridge's port",
        Cause.PORT,
        {
            "bridge": bridge(endpoint="tcp://127.0.0.1:5558"),
            "prediction": Prediction(reason="unpublished"),
        },
    ),
    (
        "the bridge's topic",
        Cause.TOPIC,
        {"bridge": bridge(topic="u"), "prediction": Prediction(reason="unpublished")},
    ),
    ("left out", Cause.LEFT_OUT, {"prediction": Prediction(reason="gap")}),
    (
        "another model's profile",
        Cause.WRONG_PROFILE,
        {"bridge": bridge(content=ContentProfile(model="large")), "prediction": NOTHING},
    ),
    ("nobody declared it", Cause.WRONG_PROFILE, {"prediction": Prediction(unknown_profile=True)}),
    (
        "the draft head's last block",
        Cause.SPECULATIVE_DECODING,
        {
            "report": replace(REPORT, metrics=(Sample("vllm:spec_decode_num_drafts_total", {}, 3.0),)),
            "delivered": LESS,
        },
    ),
    (
        "hits that end at larger steps",
        Cause.BLOCK_SIZE,
        {"report": labelled(cache_hit_alignment_tokens="48"), "delivered": LESS},
    ),
    (
        "a profile's block size",
        Cause.BLOCK_SIZE,
        {
            "bridge": bridge(content=ContentProfile(model="tiny", block_tokens=32)),
            "prediction": Prediction(32, 1.0),
            "delivered": Sent(73, 64),
        },
    ),
    (
        "hashes of another kind",
        Cause.HASH_MODE,
        {"row": {**(WELL.row or {}), "troubles": ["orphans"]}, "prediction": NOTHING},
    ),
    (
        "a profile's hash algorithm",
        Cause.HASH_MODE,
        {"bridge": bridge(hash_algorithm="xxhash"), "prediction": Prediction(32, 1.0)},
    ),
    ("nothing is told", Cause.NOT_TOLD, {"delivered": Sent(73, None)}),
    ("nobody knows", Cause.UNKNOWN, {"delivered": Sent(73, 16)}),
    ("both found nothing", Cause.UNKNOWN, {"prediction": NOTHING, "delivered": Sent(73, 0)}),
]


def test_both_found_the_same() -> None:
    assert diagnose(WELL).cause is None


@pytest.mark.parametrize(("cause", "changes"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_cause_is_named_with_what_to_do(cause: Cause, changes: dict[str, Any]) -> None:
    found = diagnose(replace(WELL, **changes))
    assert found.cause is cause
    assert found.why
    assert found.cure


def test_every_cause_has_a_case() -> None:
    assert {cause for _, cause, _ in CASES} == set(Cause)


def test_one_block_less_without_a_draft_head_is_not_blamed_on_one() -> None:
    assert diagnose(replace(WELL, delivered=LESS)).cause is Cause.UNKNOWN


@pytest.mark.parametrize("endpoint", ["tcp://localhost:5557", "tcp://gpu-7:5557", "tcp://*:5557"])
def test_another_spelling_of_an_address_is_no_other_address(endpoint: str) -> None:
    found = replace(WELL, bridge=bridge(endpoint=endpoint), prediction=Prediction(reason="stale"))
    assert diagnose(found).cause is Cause.LEFT_OUT
