"""vLLM's KV connectors, by the class names that its configuration has: which tell when a block leaves. Pure.

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
    "SimpleCPUOffloadConnector": Departures.TOLD,
    "FlexKVConnectorV1": Departures.TOLD,
    "LMCacheServer": Departures.TOLD,
    "LMCacheConnectorV1": Departures.UNTOLD,
    "MooncakeStoreConnector": Departures.UNTOLD,
}
ENGINES: Final = {"sglang": Departures.TOLD}
"""Engines whose own cache has several tiers."""


def departures(engine: str, connectors: Collection[str], tier: Tier) -> Departures:
    """What is known beforehand of a tier's removals. The GPU's are always told, by the engine itself; of several
    connectors the least reliable one counts, as events don't name the one that they are of."""
    if tier is Tier.GPU:
        return Departures.TOLD
    found = {CONNECTORS.get(name, Departures.UNKNOWN) for name in connectors}
    if not connectors:
        return ENGINES.get(engine, Departures.UNKNOWN)
    if Departures.UNTOLD in found:
        return Departures.UNTOLD
    return Departures.UNKNOWN if Departures.UNKNOWN in found else Departures.TOLD
