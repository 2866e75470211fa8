"""Block ids of what simulated engines hold, computed from tokens alone: nothing of any hook's is used."""

from __future__ import annotations

from collections.abc import Iterable

from events.identity import profile_digest, root_parent
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.prompt import Prompt

ROTATE_EVERY = 2000


class BlockNames(list[Prompt]):
    """Learns every prompt that the fleet is given, as its `submitted`; forgets what no engine holds. It keeps
    no prompt: as a list it is always empty."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet = fleet
        self._root = root_parent(profile_digest(fleet.plan.content()))
        self._young: dict[int, bytes] = {}
        self._old: dict[int, bytes] = {}
        self._learned = 0

    def append(self, prompt: Prompt) -> None:
        """Names the prompt's whole blocks and those that its answer fills."""
        hasher = self._fleet.ring[prompt.tenant].hasher()
        ids = hasher.chain(self._root, prompt.token_bytes(), prompt.block_size)
        self._young.update(zip(prompt.keys, ids, strict=True))
        parent = ids[-1] if ids else self._root
        for block in prompt.output_blocks():
            parent = hasher.block_id(parent, block.tokens)
            self._young[block.key] = parent
        self._learned += 1
        if self._learned % ROTATE_EVERY == 0:
            self._rotate()

    def names(self, keys: Iterable[int]) -> set[bytes]:
        """Raises KeyError for a key that no request of the newest had."""
        return {self._young.get(key) or self._old[key] for key in keys}

    def _rotate(self) -> None:
        """The newest requests may not have been admitted yet, so theirs are all kept for one more turn."""
        held = {key for worker in self._fleet.workers for key in worker.engine.cached_keys()}
        self._old = {key: name for key, name in self._old.items() if key in held} | self._young
        self._young = {}
