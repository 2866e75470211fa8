"""Why a predicted hit and a delivered one differ: from what was seen to one named cause. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from events.model.profile import ContentProfile
from kvledger.attachment.address import RankAddress
from kvledger.attachment.bridge_settings import BridgeSettings
from kvledger.attachment.metric_page import count_of
from kvledger.attachment.plan import EVENTS_CONFIG
from kvledger.attachment.probe import Sent, Wire
from kvledger.attachment.report import EngineReport


class Cause(StrEnum):
    """What keeps a prediction from being the engine's own hit."""

    PREFIX_CACHING_OFF = "prefix_caching_off"
    PUBLISHER_OFF = "publisher_off"
    PORT = "port"
    TOPIC = "topic"
    NOT_ATTACHED = "not_attached"
    LEFT_OUT = "left_out"
    WRONG_PROFILE = "wrong_profile"
    BLOCK_SIZE = "block_size"
    HASH_MODE = "hash_mode"
    SPECULATIVE_DECODING = "speculative_decoding"
    NOT_TOLD = "not_told"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the lookup said once it knew everything up to the first answer. `reason`: why the rank was left out;
    `unknown_profile`: nobody has declared the model's name."""

    matched: int | None = None
    staleness_ms: float | None = None
    basis: str = ""
    identity: str = ""
    reason: str | None = None
    unknown_profile: bool = False


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was seen of one rank. `row`: its stream in `/v1/workers`; `bridge`: what its bridge was told, if
    it runs with this home; `source`: where the engine says that it publishes; `learned`: its own identity."""

    report: EngineReport
    rank: int
    learned: ContentProfile
    source: RankAddress | None
    row: Mapping[str, Any] | None
    bridge: BridgeSettings | None
    prediction: Prediction
    delivered: Sent
    wire: Wire | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`cause` None: prediction and engine agree."""

    cause: Cause | None
    why: str = ""
    cure: str = ""


AGREE = Diagnosis(None)


def diagnose(found: Findings) -> Diagnosis:
    """The first cause that explains what was seen, those that stop everything first."""
    if found.report.cache_setting("enable_prefix_caching") == "False":
        return Diagnosis(
            Cause.PREFIX_CACHING_OFF,
            "the engine runs with --no-enable-prefix-caching: it has no hits and publishes nothing",
            "start it with --enable-prefix-caching",
        )
    predicted, cached = found.prediction.matched, found.delivered.cached
    if predicted is not None and predicted == cached and cached > 0:
        return AGREE
    for look in (_source, _stream, _told):
        diagnosis = look(found)
        if diagnosis is not None:
            return diagnosis
    if cached is None:
        return Diagnosis(
            Cause.NOT_TOLD,
            "the engine does not say what it found: others were served meanwhile, and usage has no details",
            "start vLLM with --enable-prompt-tokens-details, or ask again while it is idle",
        )
    assert predicted is not None
    return _hit(found, predicted, cached)


def _source(found: Findings) -> Diagnosis | None:
    """From the engine to where a bridge could listen."""
    if found.report.sources is not None and found.rank not in found.report.sources:
        return Diagnosis(Cause.PUBLISHER_OFF, "the engine publishes no cache events", EVENTS_CONFIG)
    wire, at = found.wire, found.source or found.bridge
    if wire is None or at is None or wire.ours:
        return None
    if not wire.listening:
        return Diagnosis(
            Cause.PORT,
            f"nobody listens at {at.endpoint}",
            "compare the endpoint in --kv-events-config with it, and the ports that a container publishes",
        )
    if wire.topics:
        told = ", ".join(repr(topic) for topic in wire.topics)
        return Diagnosis(
            Cause.PORT,
            f"{at.endpoint} publishes for another engine (topics {told}): no block of this one's came",
            "give each engine a port of its own",
        )
    return Diagnosis(
        Cause.PUBLISHER_OFF if found.report.sources is None else Cause.PORT,
        f"{at.endpoint} takes connections and published nothing while the engine computed new blocks",
        f"is that the engine's publisher? vLLM is started with {EVENTS_CONFIG}",
    )


def _stream(found: Findings) -> Diagnosis | None:
    """From where a bridge could listen to a stream that counts."""
    if found.row is None:
        return Diagnosis(
            Cause.NOT_ATTACHED,
            "no bridge carries this engine's events",
            f"kvledger attach {found.report.url}",
        )
    bridge, source, wire = found.bridge, found.source, found.wire
    if bridge is not None and source is not None and not _same(bridge.endpoint, source.endpoint):
        return Diagnosis(
            Cause.PORT,
            f"the bridge listens to {bridge.endpoint}, the engine publishes at {source.endpoint}",
            f"start the bridge with --endpoint {source.endpoint}",
        )
    topic = (wire.topic if wire is not None else None) or (source.topic if source is not None else None)
    if bridge is not None and bridge.topic and topic is not None and bridge.topic != topic:
        return Diagnosis(
            Cause.TOPIC,
            f"the bridge takes topic {bridge.topic!r}, the engine publishes under {topic!r}",
            f"start the bridge with --topic {topic!r}, or without one",
        )
    return None


def _told(found: Findings) -> Diagnosis | None:
    """From a stream to a prediction."""
    wrong = _profile(found)
    prediction = found.prediction
    if wrong is not None and (prediction.matched != found.delivered.cached or prediction.matched is None):
        return wrong
    if prediction.reason is not None:
        gone = prediction.reason in ("silent", "unregistered")
        return Diagnosis(
            Cause.LEFT_OUT,
            f"lookups leave its stream out: {prediction.reason}",
            f"does its bridge still run? kvledger attach {found.report.url}"
            if gone
            else "kvledger status and /v1/workers say more; docs/lookup.md lists the reasons",
        )
    if prediction.matched is None or prediction.unknown_profile:
        return Diagnosis(
            Cause.WRONG_PROFILE,
            f"nobody has declared the model {found.report.model.id!r}",
            "compare the model in the bridge's profile with the name that the engine serves",
        )
    return None


def _profile(found: Findings) -> Diagnosis | None:
    """A field of the bridge's profile that is not this engine's."""
    if found.bridge is None:
        return None
    for name in ContentProfile.model_fields:
        told, learned = getattr(found.bridge.content, name), getattr(found.learned, name)
        # The events' own block size counts, whatever the profile says.
        if name != "block_tokens" and told is not None and learned is not None and told != learned:
            return Diagnosis(
                Cause.WRONG_PROFILE,
                f"the bridge's profile says {name} = {told!r}, the engine {learned!r}",
                "correct the profile, or leave the field out of it",
            )
    return None


def _hit(found: Findings, predicted: int, cached: int) -> Diagnosis:
    """Both speak, and differ (or nothing was found at all)."""
    row: Mapping[str, Any] = found.row or {}
    block = (found.wire.block_tokens if found.wire is not None else None) or found.learned.block_tokens
    seen = f"predicted {predicted}, delivered {cached}"
    alignment = _alignment(found.report)
    if predicted > cached and _speculates(found.report) and predicted - cached == (block or alignment):
        return Diagnosis(
            Cause.SPECULATIVE_DECODING,
            f"{seen}: the draft head has the engine compute the last cached block again",
            "expect one block less than is predicted of this engine",
        )
    if predicted > cached and alignment is not None and cached == predicted - predicted % alignment:
        return Diagnosis(
            Cause.BLOCK_SIZE,
            f"{seen}: the engine's hits end only at multiples of {alignment} tokens, its blocks hold {block}",
            "expect hits to be rounded down to that",
        )
    troubles = set(row.get("troubles", ()))
    if predicted < cached and troubles & {"orphans", "unknown_events"}:
        return Diagnosis(
            Cause.HASH_MODE,
            f"{seen}: the hook could not place what the engine said ({', '.join(sorted(troubles))})",
            "the engine's hashes or extra keys are of a kind that this version doesn't read: upgrade kvledger",
        )
    told, own = (
        found.bridge.hash_algorithm if found.bridge else None,
        found.report.cache_setting("prefix_caching_hash_algo"),
    )
    if told is not None and own is not None and told != own:
        return Diagnosis(
            Cause.HASH_MODE,
            f"{seen}: the bridge's profile says {told}, the engine hashes with {own}",
            "correct hash_algorithm in the profile",
        )
    size = found.bridge.content.block_tokens if found.bridge is not None else None
    if size is not None and block is not None and size != block:
        return Diagnosis(
            Cause.BLOCK_SIZE,
            f"{seen}: the bridge's profile says blocks of {size} tokens, the engine's hold {block}",
            "correct block_tokens in the profile, or leave it out",
        )
    return Diagnosis(
        Cause.UNKNOWN,
        f"{seen}; {', '.join(sorted(troubles)) or 'nothing is known to be wrong with the stream'}",
        "was the block evicted meanwhile, or is the model of several attention groups? POST /v1/explain says "
        "which block ends the prediction",
    )


def _speculates(report: EngineReport) -> bool:
    return report.setting("speculative_config") is not None or any(
        one.name.startswith("vllm:spec_decode_") for one in report.metrics
    )


def _alignment(report: EngineReport) -> int | None:
    """Where hits may end, if not at every block (vLLM 0.32.0, config/cache.py)."""
    for name in ("cache_hit_alignment_tokens", "effective_attention_block_size"):
        value = count_of(report.cache_setting(name))
        if value:
            return value
    return None


def _same(one: str, other: str) -> bool:
    """Whether two addresses may be one: names of hosts can't be compared, and `*` is any."""
    (host, _, port), (other_host, _, other_port) = (
        address.removeprefix("tcp://").replace("localhost", "127.0.0.1").rpartition(":")
        for address in (one, other)
    )
    literal = all(part.replace(".", "").isdecimal() for part in (host, other_host))
    return port == other_port and (not literal or host == other_host)
