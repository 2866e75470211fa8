"""What determines a block's values (content profile) and its bytes' shape (layout profile)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from events.model.field import Record, Text

MANDATORY = (
    "model",
    "revision",
    "tokenizer_revision",
    "attention",
    "position_encoding",
    "kv_dtype",
    "block_tokens",
)
"""Without any of these two engines can't be known to compute the same tensors: `unverified`."""


class ContentProfile(Record):
    """Everything that determines the tensors' values; the engine's hash algorithm and seed are not in it.

    `None` in a mandatory field means «not known» and makes the profile unverified; `None` elsewhere means
    «the engine has none» (no adapter, no multimodal processor, no chat template).
    """

    model: Text | None = None
    revision: Text | None = None
    tokenizer_revision: Text | None = None
    chat_template: Text | None = None
    adapter: Text | None = None
    adapter_revision: Text | None = None
    mm_processor: Text | None = None
    attention: Text | None = None
    position_encoding: Text | None = None
    kv_dtype: Text | None = None
    block_tokens: Annotated[int, Field(gt=0, le=1 << 20)] | None = None
    approximate: Literal[True] | None = None
    """The ids are of position-independent chunks or blended caches: an id space of its own, and never an
    exact hit. It counts in the digest only where it is set, so that no exact profile's ids depend on it."""

    def missing(self) -> tuple[str, ...]:
        """Names of the mandatory fields that are not known; empty means verified.

        An adapter without its revision is as unknown as a model without one.
        """
        gone = [name for name in MANDATORY if getattr(self, name) is None]
        if self.adapter is not None and self.adapter_revision is None:
            gone.append("adapter_revision")
        return tuple(gone)


class LayoutProfile(Record):
    """The shape of the bytes: what `transfer_compatible` compares; lookups don't need it."""

    tp_size: Annotated[int, Field(gt=0)] = 1
    tp_rank: Annotated[int, Field(ge=0)] = 0
    pp_size: Annotated[int, Field(gt=0)] = 1
    pp_rank: Annotated[int, Field(ge=0)] = 0
    kv_head_layout: Text | None = None
    page_layout: Text | None = None
    layer_grouping: Text | None = None
    connector: Text | None = None
    connector_version: Text | None = None


def transfer_compatible(source: LayoutProfile, destination: LayoutProfile) -> bool:
    """Whether bytes laid out as `source` can be used as `destination` as they are."""
    return source == destination
