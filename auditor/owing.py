"""Who owes an ack, as the conditions ask for it. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from auditor.case import StreamCase
from auditor.evidence import Evidence
from auditor.registry import EpochRegistered


@dataclass(frozen=True, slots=True)
class Owing:
    """One engine life that owes an ack, judged by its newest epoch; `absent` says why no word of it can be
    expected any more ("" while it can). `destroyed` are durable stores that nobody answers for any more."""

    epoch: EpochRegistered
    earlier: tuple[EpochRegistered, ...]
    case: StreamCase | None
    absent: str
    destroyed: frozenset[str] = frozenset()

    @property
    def subject(self) -> str:
        return str(self.epoch.stream)

    @property
    def live(self) -> bool:
        return not self.absent


def owed_domains(evidence: Evidence) -> list[str]:
    return sorted(evidence.scope.domains & set(evidence.scope.alias_keys))
