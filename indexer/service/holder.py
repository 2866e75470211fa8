"""How every holder stands to an order, and whether that is all: a reader's view, the verdict is the auditor's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from events.fold.registry import Registry
from events.fold.registry_state import Deletion
from events.fold.state import Standing
from events.ids import CANARY_WORKER, StreamKey
from events.scope import covers_domain
from router_client.view import LocalView
from router_client.wire import Model


class HolderStanding(Model):
    """How one engine life, by its newest epoch, stands to an order in one domain. `superseded`: a later life
    took its place, but nothing attests that it ended, so it still owes what it didn't discharge."""

    worker: str
    dp_rank: int
    epoch: str
    domain: str
    standing: Literal["discharged", "owes", "refused"]
    superseded: bool
    old_left: int | None
    removed: int | None
    orphans: int | None
    refused: str | None


def holders_of(order: Deletion, view: LocalView) -> list[HolderStanding]:
    """How every engine life whose end isn't proven stands to an order, by covered domain whose keys are
    here (`unread_domains` names the others)."""
    registry = view.registry
    found: list[HolderStanding] = []
    for key in owing_streams(view):
        for name, standing in _standings(order, view, key):
            found.append(
                HolderStanding(
                    worker=key.worker,
                    dp_rank=key.rank,
                    epoch=key.epoch,
                    domain=name,
                    standing=_word(standing),
                    superseded=registry.superseded(key),
                    old_left=standing.old_left if standing and standing.refused is None else None,
                    removed=standing.removed if standing and standing.refused is None else None,
                    orphans=standing.orphans if standing and standing.refused is None else None,
                    refused=standing.refused if standing else None,
                )
            )
    return found


def words_of_holders(
    order: Deletion, view: LocalView, owing: Sequence[StreamKey]
) -> set[Literal["discharged", "owes", "refused"]]:
    """What there is among the standings of `holders_of`, for many orders at once over the same `owing_streams`."""
    return {_word(standing) for key in owing for _, standing in _standings(order, view, key)}


def _standings(order: Deletion, view: LocalView, key: StreamKey) -> Iterator[tuple[str, Standing | None]]:
    """By covered domain whose keys are here, how a stream stands to the order."""
    stream = view.streams.get(key)
    state = stream.state if stream is not None else view.former.get(key)
    epoch_no = view.registry.registrations[key].epoch_no
    for name in _covered(order, view.registry):
        keys = view.keyring.get(name)
        if keys is None:
            continue
        standing: Standing | None = None
        if state is not None and state.epoch_no == epoch_no:
            standing = state.standings.get((keys.alias(key.worker, key.rank, epoch_no), order.number))
        yield name, standing


def unread_domains(order: Deletion, view: LocalView) -> list[str]:
    """Covered domains whose keys aren't here, so that nobody's ack for them can be read."""
    return [name for name in _covered(order, view.registry) if view.keyring.get(name) is None]


def discharged_everywhere(holders: list[HolderStanding], unread: list[str]) -> bool | None:
    """True only on evidence: somebody was to answer, and everybody did. None: nothing is known to be owed,
    but not everything can be read here, or there is nobody to ask."""
    if any(holder.standing != "discharged" for holder in holders):
        return False
    return None if unread or not holders else True


def _covered(order: Deletion, registry: Registry) -> list[str]:
    domains = registry.domains.items()
    return [name for name, domain in domains if covers_domain(order.scope, name, domain.tenant)]


def owing_streams(view: LocalView) -> list[StreamKey]:
    """The newest epoch of every engine life of every rank, but for lives whose end is attested or said by a
    `closed` with their engine, and kvledger's own canaries, which hold nothing."""
    newest: dict[tuple[str, int, str], StreamKey] = {}
    for key, registration in view.registry.registrations.items():
        if key.worker == CANARY_WORKER:
            continue
        newest[key.worker, key.rank, registration.body.engine_life] = key
    owing: list[StreamKey] = []
    for key in newest.values():
        stream = view.streams.get(key)
        state = stream.state if stream is not None else view.former.get(key)
        closed = state is not None and state.engine_ended and not state.sticky
        if not closed and not view.registry.ended(key):
            owing.append(key)
    return owing


def _word(standing: Standing | None) -> Literal["discharged", "owes", "refused"]:
    if standing is None:
        return "owes"
    if standing.refused is not None:
        return "refused"
    return "discharged" if standing.discharged else "owes"
