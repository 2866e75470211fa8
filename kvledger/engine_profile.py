"""The TOML file that says what an engine computes: written by `kvledger profile init`, read by the bridge."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from events.ids import Tier
from events.model.profile import MANDATORY, ContentProfile, LayoutProfile
from kvledger.failure import CommandError, ExitCode, plain

EMITTED = ("block_tokens",)
"""Mandatory fields that the engine's events tell by themselves."""

TEMPLATE = """\
# What determines the values of this engine's KV tensors. Two engines whose [content] is equal share block ids;
# if one mandatory field is missing the identity is `unverified`: its copies are answered for this worker only.
# A wrong value here is worse than a missing one: leave out what you don't know.

[content]
model = {model}                       # mandatory: model id
# revision = "sha256:…"               # mandatory: digest of the weights, or the commit of the model repository
# tokenizer_revision = "…"            # mandatory: commit or digest of the tokenizer
# attention = "full"                  # mandatory: implementation family, for example flash-attn-3, flashinfer
# position_encoding = "rope"          # mandatory: with its scaling, for example rope-yarn-4
# kv_dtype = "bf16"                   # mandatory: dtype or codec with version, for example fp8_e4m3-v1
# block_tokens = 16                   # the engine's events tell it
# chat_template = "sha256:…"          # digest; leave out if the engine has none
# mm_processor = "…"                  # revision of the multimodal processor; leave out if there is none

# Adapters by the name that requests use, with their revision. One that isn't here is unverified.
[adapters]
# my-lora = "sha256:…"

# The shape of the bytes: compared before a transfer, not needed for lookups.
[layout]
tp_size = 1
tp_rank = 0
pp_size = 1
pp_rank = 0
# kv_head_layout = "HND"
# page_layout = "…"
# layer_grouping = "…"
# connector = "…"
# connector_version = "…"

[engine]
name = "vllm"                         # or "sglang"; with sglang fill in block_tokens above, /server_info has it
# version = "0.32.0"
# hash_algorithm = "sha256_cbor"
# hash_seed = "vllm-none-hash"
block_bytes = [0]                     # bytes of one block, by attention group; quotas in bytes need it
# connectors = ["OffloadingConnector"]  # without their names another tier is credited from its first removal on

# Blocks that each tier's pool holds, over all groups: vllm logs "GPU KV cache size" in tokens at its start.
[engine.capacity_blocks]
# gpu = 20000
# cpu = 100000

# Tiers that outlive the engine, by the store's name; {{worker}} becomes the worker's name. Credited once an owner
# is enrolled: kvledger holder enrol w0-disk --tier disk --owner w0
[engine.durable_ids]
# disk = "{{worker}}-disk"              # a disk of this worker's own
# remote = "store-1"                  # a store that several workers reach: the same name everywhere
"""


NAME_LENGTH = 200
StoreName = Annotated[
    str, StringConstraints(max_length=NAME_LENGTH, pattern=r"^([A-Za-z0-9._:@/+\-]|\{worker\})+$")
]
"""A store's name as other names are, with `{worker}` wherever the worker's is to be."""


class ProfileFileError(CommandError):
    """The profile can't be used; the message names the file and the field."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message, advice="`kvledger profile init` writes one to edit", exit_code=ExitCode.CONFIGURATION
        )


class EngineFacts(BaseModel):
    """What isn't part of the identity."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "vllm"
    version: str = ""
    hash_algorithm: str | None = None
    hash_seed: str | None = None
    block_bytes: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (0,)
    connectors: tuple[str, ...] = ()
    capacity_blocks: dict[Tier, Annotated[int, Field(gt=0)]] = Field(default_factory=dict)
    durable_ids: dict[Literal[Tier.DISK, Tier.REMOTE], StoreName] = Field(default_factory=dict)
    """By tier the store's name; `{worker}` in it becomes the worker's."""

    def durable_ids_of(self, worker: str) -> dict[Tier, str]:
        """The names as this worker declares them. Raises ProfileFileError for one that is too long then."""
        found: dict[Tier, str] = {}
        for tier, pattern in self.durable_ids.items():
            name = found[Tier(tier)] = pattern.replace("{worker}", worker)
            if len(name) > NAME_LENGTH:
                raise ProfileFileError(
                    f"engine.durable_ids.{tier.value} is too long with the worker {worker}"
                )
        return found


class EngineProfile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    content: ContentProfile = ContentProfile()
    layout: LayoutProfile = LayoutProfile()
    adapters: dict[str, str] = Field(default_factory=dict)
    engine: EngineFacts = EngineFacts()

    def missing(self) -> tuple[str, ...]:
        """Mandatory fields that neither this file nor the engine's events tell: empty means verified."""
        return tuple(name for name in self.content.missing() if name not in EMITTED)


def load_profile(path: Path) -> EngineProfile:
    """Reads a profile; raises ProfileFileError."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise ProfileFileError(f"profile {path} can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileFileError(f"profile {path} is not TOML: {error}") from error
    try:
        return EngineProfile.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ProfileFileError(f"profile {path}: {where}: {plain(first['msg'])}") from error


def template(model: str) -> str:
    """The text of a profile to edit."""
    quoted = model.replace("\\", "\\\\").replace('"', '\\"')
    return TEMPLATE.format(model=f'"{quoted}"')


def mandatory() -> tuple[str, ...]:
    """Mandatory fields that a person has to fill in."""
    return tuple(name for name in MANDATORY if name not in EMITTED)
