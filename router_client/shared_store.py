"""How the streams stand that vouch for shared stores, for one question."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from events.fold.state import ProfileState
from events.ids import StreamKey
from events.keyring import DomainKeys
from router_client.link import StoreReason
from router_client.query import Query
from router_client.standing import Standing, survey
from router_client.stream_view import Link
from router_client.view import LocalView


def owners_of(
    view: LocalView, query: Query, standings: Iterable[Standing], now_ns: int
) -> dict[StreamKey, Standing]:
    """How the streams stand that vouch for what these ones reach, for the same question."""
    wanted = {
        link.owner.key
        for standing in standings
        if standing.view is not None
        for link in standing.view.links.values()
    }
    if not wanted:
        return {}
    workers = tuple(sorted({key.worker for key in wanted}))
    eligible, _ = survey(view, replace(query, candidates=workers), now_ns)
    return {standing.key: standing for standing in eligible if standing.key in wanted}


def withheld(
    link: Link, lender: Standing | None, declared: ProfileState, keys: DomainKeys
) -> StoreReason | None:
    """Why a stream with this profile can't go by the owner's word on a store that it reaches; None: it can.
    `lender`: how the owner's stream stands for the question."""
    if lender is None or lender.reason is not None or link.owner.layout is None:
        return StoreReason.OWNER_OUT_OF_BOUND
    if declared.missing:
        return StoreReason.UNVERIFIED
    shapes = [p.layout for p in link.owner.profiles(keys) if p.id == declared.id]
    return None if declared.layout in shapes else StoreReason.OTHER_LAYOUT
