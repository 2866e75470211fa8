"""One lookup and its answer as the checker judges it, and what it may be judged to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

BASES = ("engine", "published", "unconfirmed")
"""Strongest first."""


class Outcome(StrEnum):
    """How a lookup can be judged. `WRONG_FLAGGED`: the truth contradicts it, but the answer itself says that
    it isn't to be relied on."""

    OK = "ok"
    WRONG_UNFLAGGED = "wrong_unflagged"
    WRONG_FLAGGED = "wrong_flagged"
    UNJUSTIFIED_REFUSAL = "unjustified_refusal"
    UNJUSTIFIED_EXCLUSION = "unjustified_exclusion"
    UNJUSTIFIED_SILENCE = "unjustified_silence"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One lookup's judgement; `why` names the rule and `worker`/`rank` whom it is about, both empty if ok.
    `excused`: it is ok only because something was disturbed, hidden, or too long ago."""

    outcome: Outcome
    why: str = ""
    worker: str = ""
    rank: int = 0
    excused: bool = False


@dataclass(frozen=True, slots=True)
class Credit:
    """One entry of `matches`. Counts are blocks; `tier_blocks` are the cumulative ones of gpu, cpu, disk and
    remote, None if they aren't to be judged.

    `epoch` and `next_seq` are its position. `first_missing_ns` is the stamp of the first mutation that this
    position doesn't contain, if known. `at_least`: the answer says that the worker may hold more (its inventory
    is partial), so only too much is wrong.
    """

    worker: str
    rank: int
    matched_blocks: int
    staleness_ms: float
    within_bound: bool = True
    basis: str = "engine"
    epoch: str | None = None
    first_missing_ns: int | None = None
    next_seq: int | None = None
    tier_blocks: tuple[int, int, int, int] | None = None
    identity: str = "verified"
    at_least: bool = False

    @property
    def flagged(self) -> bool:
        """Whether the answer itself says not to rely on this entry."""
        return not self.within_bound or self.basis == "unconfirmed" or self.identity != "verified"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """One entry of `excluded`; `rank` -1 where the answer names none."""

    worker: str
    rank: int
    reason: str
    staleness_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """One lookup and its answer; `start_ns` and `end_ns` enclose the call, on the truth's clock.

    `chain` is the asked blocks' keys, `bound_ms` None means `consistency: any`, `status` 0 means that no
    answer came. `candidates` None: everybody was asked about. `limited`: the answer may have been cut by
    `limit` or `candidates`, so its absences say nothing. `min_coverage`: a whole number counts streams, a
    float is a share; None is at least one stream. `coverage` is (included, eligible), None if not judged.
    """

    reader: str
    tenant: str
    chain: Sequence[int]
    bound_ms: float | None
    start_ns: int
    end_ns: int
    status: int
    credits: Sequence[Credit] = ()
    exclusions: Sequence[Exclusion] = ()
    complete: bool = False
    staleness_ms: float | None = None
    on_stale: str = "drop"
    min_coverage: int | float | None = None
    limited: bool = False
    basis: str = "published"
    candidates: Sequence[str] | None = None
    coverage: tuple[int, int] | None = None
