"""vLLM's KV connectors, by the names of their classes: which tell when a block leaves. Pure.

Read in vLLM 0.32 and lmcache 0.5.6; `LMCacheServer` stands for its multiprocess server, which tells its coordinator
itself. What isn't listed is unknown, `LMCacheMPConnector` among it: it tells removals since 0.5.6 and told none before.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Final

from events.ids import Tier


class Departures(StrEnum):
    """Whether stores in a tier are followed by removals: `told`, `untold` (an entry may be long gone), or
    `unknown` until the first removal there has been seen."""

    TOLD = "told"
    UNTOLD = "untold"
    UNKNOWN = "unknown"


CONNECTORS: Final = {
    "OffloadingConnector": Departures.TOLD,
    "SimpleCPUOffload": Departures.TOLD,
    "FlexKV": Departures.TOLD,
    "LMCacheServer": Departures.TOLD,
    "LMCacheConnectorV1": Departures.UNTOLD,
    "Mooncake": Departures.UNTOLD,
}
"""By how the names begin."""
_SGLANG_TOLD: Final = (Tier.GPU, Tier.CPU)
"""Its media DISK and EXTERNAL are declared and nothing was seen to tell of them."""


def departures(engine: str, connectors: Collection[str], tier: Tier) -> Departures:
    """What is known beforehand of a tier's removals. The GPU's are always told, by the engine itself; of several
    connectors the least reliable one counts, as events don't name the one that they are of."""
    if tier is Tier.GPU or (engine == "sglang" and tier in _SGLANG_TOLD and not connectors):
        return Departures.TOLD
    found = {_of(name) for name in connectors} or {Departures.UNKNOWN}
    if Departures.UNTOLD in found:
        return Departures.UNTOLD
    return Departures.UNKNOWN if Departures.UNKNOWN in found else Departures.TOLD


def _of(name: str) -> Departures:
    for beginning, known in CONNECTORS.items():
        if name.startswith(beginning):
            return known
    return Departures.UNKNOWN
