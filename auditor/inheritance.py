"""What an epoch takes over from earlier ones of its engine life: the memory goes on, whoever reports it."""

from __future__ import annotations

from collections.abc import Iterable

from auditor.case import StreamCase


def inherit(case: StreamCase, life: Iterable[StreamCase]) -> None:
    """What earlier epochs of the same engine `life` left in its memory lies in the new one's shadow."""
    here = {domain: name for name, domain in case.domains.items()}
    for other in life:
        if other.epoch.epoch_no > case.epoch.epoch_no:
            continue
        for place, table in other.fold.tables.places.items():
            name = here.get(other.domains.get(place.alias, ""))
            if name is not None:
                shadow = case.fold.tables.shadow.setdefault(place._replace(alias=name), {})
                shadow.update(
                    (block, None if copy.doubted else copy.provenance) for block, copy in table.items()
                )
        for place, ids in other.fold.tables.unverified.items():
            name = here.get(other.domains.get(place.alias, ""))
            if name is not None:
                case.fold.tables.unverified.setdefault(place._replace(alias=name), set()).update(ids)
