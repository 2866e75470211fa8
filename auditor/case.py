"""What is kept of each stream while a request's evidence is gathered: its acks, what came late, how it stood. Plain
data; `auditor.evidence` fills it, by the rules of `auditor.telling`, `auditor.age`, `auditor.ack`, `auditor.late` and
`auditor.inheritance`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from auditor.ending import Endings
from auditor.fold import StreamFold
from auditor.registry import EpochRegistered
from auditor.residency import Place
from events.ids import Inventory, StreamKey, VerdictReason
from events.model.part import Refused, RequestStanding


class Age(StrEnum):
    """A copy's provenance against a request."""

    OLD = "old"
    UNKNOWN = "unknown"
    FRESH = "fresh"


@dataclass(frozen=True, slots=True)
class Resident:
    """A copy that isn't known to be younger than the request, as it was held at an ack."""

    place: Place
    block: bytes
    profile: str | None
    age: Age


@dataclass(frozen=True, slots=True)
class Base:
    """How much of a holder was known at an ack: exact since `seq` (None: not at all), a record under the order
    `installed`."""

    seq: int | None
    from_opened: bool
    inventory: Inventory
    durable_id: str | None
    orphans: int
    unassigned: int
    installed: int = -1
    groups: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Transfer:
    name: str
    ids: tuple[bytes, ...]
    age: Age


@dataclass(frozen=True, slots=True)
class AckRead:
    """One ack that lists the request, with the fold as it stood then."""

    seq: int
    offset: int
    installed: int
    standing: RequestStanding
    nonce: int | None
    residents: tuple[Resident, ...]
    bases: Mapping[str, Base]
    transfers: tuple[Transfer, ...]
    held: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By holder: how many copies of the domain the fold held then, and the sum of their ids mod 2^128."""

    @property
    def discharging(self) -> bool:
        return self.standing.old_left == 0


@dataclass(frozen=True, slots=True)
class Late:
    """Copies that came after a discharging ack; `event` names the record's fact."""

    event: str
    stream: StreamKey
    seq: int
    partition: int
    offset: int
    place: Place
    domain: str
    ids: tuple[bytes, ...]
    profile: str | None
    provenance: int | None
    age: Age
    installed: int
    """The newest order that its writer had installed."""
    outlived: bool
    """Told by an epoch that has discharged nothing and isn't its life's newest: late if behind the closing nonce."""


@dataclass(slots=True)
class StreamCase:
    """One registered stream's part of the evidence. `domains` maps its aliases in scope to domain names; `reached` is
    the newest order that any record has installed so far, `told_under` was that when copies of a holder were told of,
    `told_seq` the record that did so last; `vouched` has the runs of chained records, (first, last), that a signature
    at their end covers, and `chained_from` begins the one that goes on."""

    epoch: EpochRegistered
    fold: StreamFold
    domains: Mapping[bytes, str]
    acks: dict[str, AckRead] = field(default_factory=dict)
    first_discharge: dict[str, AckRead] = field(default_factory=dict)
    stands_since: dict[str, AckRead] = field(default_factory=dict)
    """By domain: the first of the discharging acks that nothing has taken back."""
    taken_back: set[str] = field(default_factory=set)
    withdrawn: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By domain: how many discharges that stood were taken back, the lowest order that one of them had installed."""
    refusals: dict[str, Refused] = field(default_factory=dict)
    late: list[Late] = field(default_factory=list)
    barriers: dict[str, int] = field(default_factory=dict)
    appeared: dict[Place, int] = field(default_factory=dict)
    disputes: list[tuple[VerdictReason, str]] = field(default_factory=list)
    recreated: int = 0
    control_disputes: list[int] = field(default_factory=list)
    strange_aliases: set[bytes] = field(default_factory=set)
    closed_seq: int | None = None
    ended_seq: int | None = None
    ended_under: int = -1
    told_seq: int = -1
    reached: int = -1
    told_under: dict[str, int] = field(default_factory=dict)
    opened_under: int = -1
    chained_from: int = 0
    vouched: list[tuple[int, int]] = field(default_factory=list)
    removed: int = 0
    unvouched: dict[tuple[str, bytes, bytes], None] = field(default_factory=dict)
    """(domain, block, parent) as first told since a signature last spoke for what was told, each once, without what is
    known already: what the ancestry would grow by."""
    moves: set[tuple[str, str]] = field(default_factory=set)
    """(domain, name) of transfers that it has told of while an earlier epoch of its life had them under way."""
    endings: Endings = field(default_factory=Endings)

    def link(self, seq: int, *, chained: bool, signed: bool) -> None:
        """Takes in how a new record hangs on the one before it. A signature speaks for its own record and, by the
        chain, for all before it back to where the chain is broken."""
        if not chained:
            self.chained_from = seq
        if signed:
            if self.vouched and self.vouched[-1][0] == self.chained_from:
                self.vouched.pop()
            self.vouched.append((self.chained_from, seq))

    def domain_of(self, name: bytes) -> str:
        """The domain of an alias; one without a known name goes by its alias (profile scopes only)."""
        domain = self.domains.get(name)
        if domain is None:
            self.strange_aliases.add(name)
            return name.hex()
        return domain

    def answer(self, domain: str, ack: AckRead) -> None:
        """The newest ack of a domain stands, in the place of any refusal."""
        self.acks[domain] = ack
        self.refusals.pop(domain, None)
        # what landed with an unknown age before was looked at here, if it is still held
        self.late = [one for one in self.late if one.domain != domain or one.age is not Age.UNKNOWN]
        if ack.discharging:
            self.first_discharge.setdefault(domain, ack)
            self.stands_since.setdefault(domain, ack)
        else:
            self._take_back(domain)

    def refuse(self, domain: str, refusal: Refused) -> None:
        """A refusal stands in the place of any ack."""
        self.refusals[domain] = refusal
        self.acks.pop(domain, None)
        self._take_back(domain)

    def _take_back(self, domain: str) -> None:
        """A refusal, or an ack that finds old copies left, comes behind whatever was acked before."""
        stood = self.stands_since.pop(domain, None)
        self.taken_back.add(domain)
        if stood is not None:
            count, lowest = self.withdrawn.get(domain, (0, stood.installed))
            self.withdrawn[domain] = count + 1, min(lowest, stood.installed)

    def vouches(self, seq: int) -> bool:
        """Whether a signature of the epoch's key speaks for a record. Anybody who can write to the topic can put a
        record without one behind the newest."""
        return any(first <= seq <= last for first, last in self.vouched)
