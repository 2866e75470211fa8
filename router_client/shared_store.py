"""How the streams stand that vouch for shared stores, for one question."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from events.ids import StreamKey
from router_client.query import Query
from router_client.standing import Standing, survey
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
