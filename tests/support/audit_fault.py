"""What goes wrong in a simulated fleet under audit."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Faults:
    """Probabilities of a step or an act; all zero is a fleet of truthful workers on a perfect network.

    `resync` is no fault but its cure: how soon the controller asks a stream with a hole for a snapshot.
    """

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
    forgotten: float = 0.0
    unreadable: float = 0.0
    equivocated: float = 0.0
    split_view: float = 0.0
    idle_reset: float = 0.0
    engine_loss: float = 0.0
    resync: float = 0.0
    impostor: float = 0.0


NONE = Faults()
MIXED = Faults(
    0.02, 0.05, 0.05, 0.02, 0.3, 0.02, 0.05, 0.01, 0.1, 0.1, 0.05, 0.03, 0.3, 0.002, 0.001, 0.0005, 0.02, 0.01, 0.1
)  # fmt: skip
MILD = Faults(lost=0.001, reattach=0.02, forgotten=0.5, resync=0.5)
"""Honest workers: one record of a thousand is lost, and hooks restart, half of them without a memory of when
what the engine holds was admitted."""

PROFILES: dict[str, Faults] = {
    "mixed": MIXED,
    "losses and liars": replace(MIXED, lost=0.04, kept=0.2, silent=0.05, cut=0.0, crash=0.0),
    "partitions and zombies": Faults(cut=0.12, crash=0.06, zombie=0.6, reattach=0.05, repeated=0.05),
    "restarts and resets": Faults(
        lost=0.01, reattach=0.08, forgotten=0.5, idle_reset=0.08, engine_loss=0.05, resync=0.4
    ),
    "damaged log": Faults(lost=0.01, unreadable=0.01, equivocated=0.004, split_view=0.002, resync=0.4),
}
ALONE: dict[str, Faults] = {
    "lost": Faults(lost=0.03),
    "repeated": Faults(repeated=0.1),
    "cut": Faults(cut=0.1),
    "crash": Faults(crash=0.05),
    "zombie": Faults(crash=0.05, zombie=1.0),
    "reattach": Faults(reattach=0.08),
    "kept": Faults(kept=0.1),
    "silent": Faults(silent=0.05),
    "tombstone_ignored": Faults(tombstone_ignored=0.3),
    "laundered": Faults(laundered=0.3),
    "unregistered": Faults(unregistered=0.5),
    "registration_lost": Faults(registration_lost=0.1),
    "forgotten": Faults(reattach=0.08, forgotten=1.0),
    "unreadable": Faults(unreadable=0.01, resync=0.5),
    "equivocated": Faults(equivocated=0.01),
    "split_view": Faults(split_view=0.003),
    "idle_reset": Faults(idle_reset=0.1),
    "engine_loss": Faults(engine_loss=0.1, resync=0.5),
    "impostor": Faults(impostor=0.02),
}
"""Each fault by itself (with what it can't strike without)."""
assert set(ALONE) == {one.name for one in fields(Faults)} - {"resync"}
