"""One piece of the museum: a way to get a deletion proven that wasn't done, as a story with one switch.

`tell(False)` is the same story without the trick, and is proven; `tell(True)` is what somebody tries. Each gives
the bundle that `audit run --bundle` would write, or that an attacker hands over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from events.chain import sha256
from events.ids import VerdictKind, VerdictReason
from events.signing import Signer
from tests.support.bundle import bundle
from tests.support.deletion_case import Fleet

STRANGER = Signer.from_seed(sha256(b"stranger"))

Story = Callable[[bool], bytes]


@dataclass(frozen=True)
class Exhibit:
    """`verdict` None: the bundle is invalid. `reasons` are all that the verdict gives."""

    name: str
    tell: Story
    verdict: VerdictKind | None
    reasons: frozenset[VerdictReason]


HUNG: list[Exhibit] = []


def exhibit(name: str, verdict: VerdictKind | None, *reasons: VerdictReason) -> Callable[[Story], Story]:
    """Hangs a story; its docstring is what `docs/exploits.md` says of it."""

    def hang(tell: Story) -> Story:
        HUNG.append(Exhibit(name, tell, verdict, frozenset(reasons)))
        return tell

    return hang


def shown(fleet: Fleet) -> bytes:
    return bundle(fleet.log, fleet.request)
