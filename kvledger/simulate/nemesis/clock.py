"""Wall clocks that jump by an hour while processes run.

A stack started with `environment` has processes whose wall clock can be moved: Python's start-up file in
`clockwork/` adds the offset that stands in a file of the home to what `time.time` and `time.time_ns` say.
Programs in other languages (broker, database) keep the system's clock, which nobody can move from user space.
"""

from __future__ import annotations

import asyncio
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from events.errors import KvledgerError
from kvledger.simulate.fault import Arena, Strike
from kvledger.simulate.nemesis.trouble import carry_out
from kvledger.simulate.nemesis.whole import IndexCurrent

JUMP_S = 3600.0
HOLD_S = (1.0, 5.0)
DEADLINE_S = 60.0
CLOCKED = ("indexer", "serve", "controller", "bridge")
FOLDER_VARIABLE = "SIMULATED_CLOCKS"

_OFFSET = struct.Struct("<q")
_CLOCKWORK = Path(__file__).with_name("clockwork")


class ClockFixedError(KvledgerError):
    """The stack was started without movable clocks; start it with `clock.environment`."""


def environment(home: Path) -> dict[str, str]:
    """Variables for a stack in `home` whose own processes have movable clocks; makes the clocks' files."""
    folder = home / "clock"
    folder.mkdir(parents=True, exist_ok=True)
    for name in CLOCKED:
        (folder / name).write_bytes(_OFFSET.pack(0))
    before = os.environ.get("PYTHONPATH")
    return {
        FOLDER_VARIABLE: str(folder),
        "PYTHONPATH": os.pathsep.join([str(_CLOCKWORK), *([before] if before else [])]),
    }


def set_offset(home: Path, name: str, offset_s: float) -> None:
    """Moves the wall clock of all processes `kvledger NAME` of that home, at once. Raises ClockFixedError."""
    try:
        descriptor = os.open(home / "clock" / name, os.O_WRONLY)
    except OSError as error:
        raise ClockFixedError(f"the clock of {name} can't be moved") from error
    try:
        os.pwrite(descriptor, _OFFSET.pack(int(offset_s * 1e9)), 0)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class ClockJump:
    """One process' wall clock, or those of all, an hour ahead or back for 1 to 5 s, then right again: two
    jumps while it runs. Nothing compares wall clocks, so no lookup may suffer."""

    hold_s: tuple[float, float] = HOLD_S
    deadline_s: float = DEADLINE_S

    @property
    def name(self) -> str:
        return "clock-jump"

    async def strike(self, arena: Arena) -> Strike:
        """Raises UnrepairedError."""
        rng = arena.rng
        chosen = list(CLOCKED) if rng.random() < 0.25 else [rng.choice(CLOCKED)]
        offset_s = rng.choice((-JUMP_S, JUMP_S))
        hold_s = rng.uniform(*self.hold_s)
        home = arena.settings.home

        async def act() -> str:
            try:
                for name in chosen:
                    set_offset(home, name, offset_s)
                await asyncio.sleep(hold_s)
            finally:
                for name in chosen:
                    set_offset(home, name, 0)
            return f"{', '.join(chosen)} {offset_s:+.0f} s for {hold_s:.1f} s"

        return await carry_out(
            arena, self.name, act, IndexCurrent(arena), deadline_s=self.deadline_s, excuses=False
        )
