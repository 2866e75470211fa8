"""Two engines that differ in any field never share a block id; two that agree always do, whatever their hash
algorithm, its seed and the form of hashes on the wire. From what a server says to the ids, by real bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from events.hooks.engine_config import EngineConfig
from events.hooks.engine_stream import EngineStream
from events.hooks.vllm import decode_batch
from events.model.part import BlockStored
from events.model.profile import ContentProfile
from kvledger.attachment.identity import learn
from kvledger.attachment.model_file import ModelFiles
from kvledger.attachment.report import EngineReport, ServedModel
from tests.support.fake_engine_report import ServerFacts, server_info
from tests.support.folded_stream import RING

SIZES = (4, 8)
TOKENS = list(range(100, 148))


@dataclass(frozen=True)
class Engine:
    """What an engine computes; each field has two values here, so that few differ by chance."""

    model: str = "tiny"
    weights: str = "sha256:a"
    quantization: str | None = None
    weight_version: str = "default"
    tokenizer: str = "sha256:t"
    template: str | None = None
    processor: str | None = None
    backend: str = "x.FlashAttentionBackend"
    flash_version: int | None = None
    dtype: str = "torch.bfloat16"
    cache_dtype: str = "auto"
    rope_theta: int = 10_000
    block_tokens: int = 4
    adapter: str | None = None
    adapter_revision: str = "sha256:l"

    def report(self) -> EngineReport:
        config: dict[str, Any] = {
            "model_config": {"dtype": self.dtype, "quantization": self.quantization},
            "cache_config": {"cache_dtype": self.cache_dtype},
            "attention_config": {"backend": self.backend, "flash_attn_version": self.flash_version},
        }
        facts = ServerFacts(model=self.model, config=config)
        return EngineReport(
            url="http://127.0.0.1:8000",
            models=(ServedModel(id=self.model, root=facts.root),),
            version="0.32.0",
            config=server_info(facts, self.block_tokens, 64)["vllm_config"],
            weight_version=self.weight_version,
        )

    def files(self) -> ModelFiles:
        return ModelFiles(
            folder=Path("/models/fake"),
            weights=self.weights,
            tokenizer=self.tokenizer,
            chat_template=self.template,
            processor=self.processor,
            config={"rope_theta": self.rope_theta},
            commit=None,
            newest_s=0.0,
        )

    def config(self) -> EngineConfig:
        adapters = {} if self.adapter is None else {self.adapter: self.adapter_revision}
        profile = learn(self.report(), self.files(), adapters, 1).profile
        assert profile.missing() == ()
        return EngineConfig(content=profile.content, adapter_revisions=profile.adapters)


@dataclass(frozen=True)
class Hashing:
    """How an engine names its blocks, which is its own affair."""

    algorithm: str
    seed: str
    as_bytes: bool
    batches: int

    def names(self, tokens: list[int], size: int) -> list[int | bytes]:
        parent, found = hashlib.new(self.algorithm, self.seed.encode()).digest(), list[int | bytes]()
        for start in range(0, len(tokens), size):
            parent = hashlib.new(
                self.algorithm, parent + repr(tokens[start : start + size]).encode()
            ).digest()
            found.append(parent if self.as_bytes else int.from_bytes(parent[-8:], "big"))
        return found


def ids_of(engine: Engine, hashing: Hashing) -> list[bytes]:
    """Block ids of the tokens, as the engine's hook gives them."""
    stream = EngineStream("w0", 0, RING, engine.config(), bound_salts=dict)
    stream.open("life-1")
    size = engine.block_tokens
    names = hashing.names(TOKENS, size)
    step = -(-len(names) // hashing.batches)
    found: list[bytes] = []
    for seq, at in enumerate(range(0, len(names), step)):
        mine = names[at : at + step]
        keys = [[engine.adapter] if engine.adapter is not None else None for _ in mine]
        event = {
            "type": "BlockStored",
            "block_hashes": mine,
            "parent_block_hash": names[at - 1] if at else None,
            "token_ids": TOKENS[at * size : (at + step) * size],
            "block_size": size,
            "lora_id": None if engine.adapter is None else 1,
            "medium": "GPU",
            "lora_name": engine.adapter,
            "extra_keys": keys,
            "group_idx": 0,
        }
        batch = decode_batch(seq, msgspec.msgpack.encode([1.0, [event], 0]))
        for events in stream.translate(batch, None).parts.values():
            found += [one for event_ in events if isinstance(event_, BlockStored) for one in event_.ids]
    return found


ENGINES = st.builds(
    Engine,
    model=st.sampled_from(["tiny", "large"]),
    weights=st.sampled_from(["sha256:a", "sha256:b"]),
    quantization=st.sampled_from([None, "fp8"]),
    weight_version=st.sampled_from(["default", "2"]),
    tokenizer=st.sampled_from(["sha256:t", "sha256:u"]),
    template=st.sampled_from([None, "sha256:c"]),
    processor=st.sampled_from([None, "sha256:p"]),
    backend=st.sampled_from(["x.FlashAttentionBackend", "x.FlashInferBackend"]),
    flash_version=st.sampled_from([None, 3]),
    dtype=st.sampled_from(["torch.bfloat16", "torch.float16"]),
    cache_dtype=st.sampled_from(["auto", "fp8_e4m3"]),
    rope_theta=st.sampled_from([10_000, 20_000]),
    block_tokens=st.sampled_from(SIZES),
    adapter=st.sampled_from([None, "ad1", "ad2"]),
    adapter_revision=st.sampled_from(["sha256:l", "sha256:m"]),
)
HASHINGS = st.builds(
    Hashing,
    algorithm=st.sampled_from(["sha256", "md5", "blake2b"]),
    seed=st.text(max_size=4),
    as_bytes=st.booleans(),
    batches=st.integers(1, 4),
)
FIELDS = st.sampled_from([name for name in Engine.__dataclass_fields__ if name != "adapter_revision"])


@given(ENGINES, HASHINGS, HASHINGS)
def test_two_that_agree_always_share_all_ids(engine: Engine, one: Hashing, other: Hashing) -> None:
    ids = ids_of(engine, one)
    assert len(ids) == len(TOKENS) // engine.block_tokens
    assert ids == ids_of(engine, other)


@given(ENGINES, ENGINES, FIELDS, HASHINGS, HASHINGS)
def test_two_that_differ_in_any_field_never_share_an_id(
    engine: Engine, other: Engine, field: str, one: Hashing, another: Hashing
) -> None:
    assume(getattr(engine, field) != getattr(other, field))
    differs = replace(engine, **{field: getattr(other, field)})
    assert not set(ids_of(engine, one)) & set(ids_of(differs, another))


@given(ENGINES, HASHINGS)
def test_an_adapter_under_its_name_with_other_weights_is_another_one(
    engine: Engine, hashing: Hashing
) -> None:
    first = replace(engine, adapter="ad1", adapter_revision="sha256:l")
    again = replace(first, adapter_revision="sha256:m")
    assert not set(ids_of(first, hashing)) & set(ids_of(again, hashing))


def test_every_field_of_a_content_profile_is_among_those_that_differ() -> None:
    plain = Engine().config().content
    told: set[str] = set()
    for field in Engine.__dataclass_fields__:
        values: dict[str, Any] = {"adapter": "ad1", "block_tokens": 8, "rope_theta": 1, "flash_version": 3}
        changed = replace(Engine(), **{field: values.get(field, "other")}).config().content
        told |= {
            name for name in ContentProfile.model_fields if getattr(plain, name) != getattr(changed, name)
        }
    # Adapters come with the events, `approximate` with no engine here.
    assert told | {"adapter", "adapter_revision", "approximate"} == set(ContentProfile.model_fields)
