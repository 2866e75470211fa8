"""All faults on processes, by name."""

from __future__ import annotations

from kvledger.simulate.fault import Fault
from kvledger.simulate.nemesis.between_writes import KillBetweenWrites
from kvledger.simulate.nemesis.clock import ClockJump
from kvledger.simulate.nemesis.index_loss import IndexLoss
from kvledger.simulate.nemesis.rebalance import Rebalance
from kvledger.simulate.nemesis.service import KillService, KillSeveral, StopService
from kvledger.simulate.nemesis.target import SERVICES
from kvledger.simulate.nemesis.truncation import truncations


def process_faults() -> dict[str, Fault]:
    """Fresh ones: they count what they do."""
    made: list[Fault] = [
        *(KillService(service) for service in SERVICES),
        *(StopService(service) for service in SERVICES),
        KillSeveral(),
        Rebalance(),
        ClockJump(),
        KillBetweenWrites(),
        IndexLoss(),
        *truncations(),
    ]
    return {fault.name: fault for fault in made}
