"""What lands in an engine life's memory after it has acked that nothing old is left there: which of it is kept, for
`auditor.holding` to judge once all streams are read."""

from __future__ import annotations

from auditor.age import Ages
from auditor.case import Age, Late, StreamCase
from auditor.content import Landing
from auditor.known_scope import KnownScope
from auditor.lineage import Covered
from auditor.record import StreamRecord
from auditor.registry import ControlFold, EpochRegistered, Memory
from events.scope import is_whole_domain


class Latecomers:
    """`discharged` has, by memory and domain, the epoch_no of the first epoch that has discharged the request."""

    def __init__(self, scope: KnownScope, registry: ControlFold, ages: Ages) -> None:
        self.discharged: dict[tuple[Memory, str], int] = {}
        self._scope = scope
        self._registry = registry
        self._ages = ages

    def discharge(self, epoch: EpochRegistered, domain: str) -> None:
        """An epoch has acked that nothing old of a domain is left."""
        self.discharged.setdefault((epoch.memory, domain), epoch.epoch_no)

    def take(self, case: StreamCase, record: StreamRecord, landed: list[Landing]) -> None:
        """Keeps what landed after a discharging ack of this engine life."""
        header, number = record.header, self._scope.request.number
        for landing in landed:
            if not landing.ids or not (self.discharged or header.control.offset > number):
                continue
            domain = case.domain_of(landing.place.alias)
            outlived = not self._life_discharged(case.epoch, domain)
            if outlived and not self._outlived(case.epoch, landing, header.control.offset):
                continue
            if landing.event == "snapshot_part" and domain not in case.first_discharge:
                continue  # a re-attached hook's first inventory is judged at its own ack
            profile = _profile(case, landing)
            age = self._ages.of_claim(case, landing.place.holder, landing.provenance, header.seq)
            if age is Age.FRESH and landing.event in ("snapshot_part", "transfer_started", "tier_changed"):
                continue
            scope = self._scope
            if age is Age.FRESH and (scope.everywhere or is_whole_domain(scope.request.scope, domain)):
                # whether it is in scope can be told at once: nothing of it has to be kept
                if scope.covers(domain, landing.ids[0], profile) is Covered.YES:
                    case.recreated += len(landing.ids)
                continue
            case.late.append(
                Late(
                    landing.event,
                    record.stream,
                    header.seq,
                    record.partition,
                    record.offset,
                    landing.place,
                    domain,
                    landing.ids,
                    profile,
                    landing.provenance,
                    age,
                    header.control.offset,
                    outlived,
                )
            )

    def _life_discharged(self, epoch: EpochRegistered, domain: str) -> bool:
        """Whether any epoch of this engine life, up to this one, has discharged the request in the domain."""
        since = self.discharged.get((epoch.memory, domain))
        return since is not None and since <= epoch.epoch_no

    def _outlived(self, epoch: EpochRegistered, landing: Landing, installed: int) -> bool:
        """Whether an epoch that isn't its life's newest says, after the auditor has asked with a nonce, that
        something old came in."""
        number = self._scope.request.number
        old = installed > number and landing.provenance is not None and landing.provenance < number
        if not old or landing.event not in ("block_stored", "transfer_committed"):
            return False
        asked = any(offset <= installed and of == number for offset, of in self._registry.nonces.items())
        return asked and any(
            other.life == epoch.life and other.epoch_no > epoch.epoch_no
            for other in self._registry.epochs.values()
        )


def _profile(case: StreamCase, landing: Landing) -> str | None:
    copy = case.fold.tables.places.get(landing.place, {}).get(landing.ids[0])
    return copy.profile if copy is not None else None
