"""What a fleet of simulated workers is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from events.hooks.engine_config import EngineConfig
from events.ids import Capability, GroupKind, Tier
from events.model.part import Group
from events.model.profile import ContentProfile
from kvledger.simulate.prompt import DEFAULT_BLOCK_SIZE

MODEL = "sim-8b"
BLOCK_BYTES = 2 << 20
RING_STEPS = 10_000


class Attachment(StrEnum):
    """How engines come into the log.

    `direct`: a hook in this process that is fed between two steps, as by an agent (`basis: engine`).
    `bridge`: vLLM's bytes over a ZMQ publisher with its replay socket, read by a bridge (`basis: published`).
    """

    DIRECT = "direct"
    BRIDGE = "bridge"


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """`workers` of `ranks` data-parallel ranks each, every rank an engine and a stream of its own.

    `step_s` is how long an engine step takes, `slots` how many requests share one; `capacity_blocks` is one
    rank's pool, `cpu_blocks` that of its offloading connector (0: none). A bridged rank has a ring of
    `ring_steps` records for replay, and no replay socket at all unless `replay`.
    """

    workers: int = 4
    capacity_blocks: int = 3000
    slots: int = 8
    step_s: float = 0.005
    block_tokens: int = DEFAULT_BLOCK_SIZE
    expand: bool = False
    names: str = "sim"
    ranks: int = 1
    cpu_blocks: int = 0
    attachment: Attachment = Attachment.DIRECT
    ring_steps: int = RING_STEPS
    replay: bool = True

    @property
    def basis(self) -> str:
        """What lookups answer for: what an engine did, what it published, or what happened to arrive."""
        if self.attachment is Attachment.DIRECT:
            return "engine"
        return "published" if self.replay else "unconfirmed"

    def content(self) -> ContentProfile:
        """The one profile that all workers serve, whole, so that their blocks are verified."""
        return ContentProfile(
            model=MODEL,
            revision="1",
            tokenizer_revision="1",
            attention="full",
            position_encoding="rope",
            kv_dtype="bfloat16",
            block_tokens=self.block_tokens,
        )

    def engine_config(self) -> EngineConfig:
        """What each rank's hook is told beforehand; a bridge learns the groups from the wire."""
        direct = self.attachment is Attachment.DIRECT
        capacity = {Tier.GPU: self.capacity_blocks}
        if self.cpu_blocks:
            capacity[Tier.CPU] = self.cpu_blocks
        group = Group(index=0, kind=GroupKind.FULL, block_tokens=self.block_tokens)
        return EngineConfig(
            engine="kvledger-simulator",
            engine_version="1",
            hash_algorithm="simulated",
            removal=Capability.EVICT_BLOCKS if direct else Capability.NONE,
            admission_known=direct,
            connectors=("OffloadingConnector",) if self.cpu_blocks else (),
            content=self.content(),
            block_bytes=(BLOCK_BYTES,),
            default_domain=None,
            groups=(group,) if direct else (),
            capacity_blocks=capacity,
        )
