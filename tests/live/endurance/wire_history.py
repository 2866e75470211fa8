"""What an engine has said that it holds, heard on its own event socket."""

from __future__ import annotations

import time
from typing import Any

from tests.live.endurance.history import History
from tests.live.engine import LiveEngine
from tests.live.truth import HashTap


class WireHistory(HashTap):
    """Which hash stands for which block, and since when how many copies of it there are, each change at the moment
    that the engine stamped on it. `messages` counts what was heard."""

    def __init__(self, engine: LiveEngine) -> None:
        self.history = History()
        self.messages = 0
        super().__init__(engine)

    def _read(self, batch: Any) -> None:
        super()._read(batch)
        self.history.apply(float(batch[0]) + time.monotonic() - time.time(), batch[1])
        self.messages += 1
