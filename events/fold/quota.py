"""From usage and limits to quota states: levels, and what each holder must free. Pure and deterministic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from events.fold.registry import Registry
from events.fold.state import StreamState
from events.ids import QuotaLevel, StreamKey, Tier, Unit
from events.model.audit import QuotaShare, QuotaState
from events.model.control import LimitSet

QuotaKey = tuple[str, Tier, Unit]
"""(tenant, tier, unit)."""

MAX_AMOUNT = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class HolderUsage:
    """What one stream holds of one tenant's domains in one tier; only of streams that `counts`."""

    stream: StreamKey
    tenant: str
    tier: Tier
    blocks: int
    bytes: int

    def amount(self, unit: Unit) -> int:
        value = self.blocks if unit is Unit.BLOCKS else self.bytes
        return min(max(value, 0), MAX_AMOUNT)


def counts(registry: Registry, stream: StreamKey, durable: Collection[str] = ()) -> bool:
    """Whether a stream's usage is anybody's: it falls with its epoch, and with the attested end of its engine's
    life. A stream that nobody registered counts: its copies are there.

    `durable`: the durable ids of a tier whose holders are all durable. Of such a tier the owner's newest epoch
    alone counts, whatever became of the engine, until the store is destroyed: others only reach it.
    """
    if durable:
        owned = (registry.durable_owners.get(one) for one in durable if one not in registry.destroyed)
        return registry.current.get((stream.worker, stream.rank)) == stream and any(
            enrolled is not None and enrolled.owner == stream.worker for enrolled in owned
        )
    registration = registry.registration_of(stream)
    if registration is None:
        return True
    life = (stream.worker, registration.body.engine_life)
    return not registry.superseded(stream) and life not in registry.exits


def durable_ids(state: StreamState, tier: Tier) -> tuple[str, ...]:
    """For `counts`: the durable ids of a stream's tier, none if it has a volatile holder too."""
    named = [holder.durable_id for holder in state.holders.values() if holder.tier is tier]
    known = tuple(one for one in named if one is not None)
    return known if len(known) == len(named) else ()


def quota_level(used: int, soft: int | None, hard: int | None) -> QuotaLevel:
    """A limit is kept as long as usage doesn't exceed it."""
    if hard is not None and used > hard:
        return QuotaLevel.OVER_HARD_LIMIT
    if soft is not None and used > soft:
        return QuotaLevel.OVER_SOFT_LIMIT
    return QuotaLevel.WITHIN


def shares(excess: int, held: Mapping[StreamKey, int]) -> dict[StreamKey, int]:
    """Splits `excess` over the streams in proportion to what each holds, by largest remainder: the parts sum
    to `excess`, and none is larger than what its stream holds (`excess` is at most the sum held)."""
    total = sum(held.values())
    if excess <= 0 or total <= 0:
        return {}
    excess = min(excess, total)
    parts = {stream: excess * amount // total for stream, amount in held.items()}
    left = excess - sum(parts.values())
    by_remainder = sorted(held, key=lambda stream: (-(excess * held[stream] % total), stream))
    for stream in by_remainder[:left]:
        parts[stream] += 1
    return {stream: part for stream, part in parts.items() if part}


def evaluate(
    usage: Iterable[HolderUsage], limits: Mapping[QuotaKey, LimitSet], term: int
) -> dict[QuotaKey, QuotaState]:
    """One state for every limit ever set, also where both bounds were removed since (level `within`)."""
    held: dict[QuotaKey, dict[StreamKey, int]] = defaultdict(lambda: defaultdict(int))
    for row in usage:
        for unit in Unit:
            if (row.tenant, row.tier, unit) in limits:
                held[row.tenant, row.tier, unit][row.stream] += row.amount(unit)
    states: dict[QuotaKey, QuotaState] = {}
    for key, limit in limits.items():
        by_stream = held.get(key, {})
        used = min(sum(by_stream.values()), MAX_AMOUNT)
        excess = used - limit.hard if limit.hard is not None else 0
        states[key] = QuotaState(
            tenant=key[0],
            tier=key[1],
            unit=key[2],
            used=used,
            soft=limit.soft,
            hard=limit.hard,
            level=quota_level(used, limit.soft, limit.hard),
            shares=tuple(
                QuotaShare(worker=stream.worker, rank=stream.rank, epoch=stream.epoch, amount=amount)
                for stream, amount in sorted(shares(excess, by_stream).items())
            ),
            term=term,
        )
    return states


def differs(before: QuotaState | None, now: QuotaState) -> bool:
    """Whether `now` must be written: anything but the term changed."""
    return before is None or before.model_copy(update={"term": now.term}) != now
