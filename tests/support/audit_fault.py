"""What goes wrong in a simulated fleet under audit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Faults:
    """Probabilities of a step or an act; all zero is a fleet of truthful workers on a perfect network."""

    lost: float = 0.0
    repeated: float = 0.0
    cut: float = 0.0
    crash: float = 0.0
    zombie: float = 0.0
    reattach: float = 0.0
    kept: float = 0.0
    silent: float = 0.0
    tombstone_ignored: float = 0.0
    laundered: float = 0.0
    unregistered: float = 0.0
    registration_lost: float = 0.0


NONE = Faults()
MIXED = Faults(0.02, 0.05, 0.05, 0.02, 0.3, 0.02, 0.05, 0.01, 0.1, 0.1, 0.05, 0.03)
