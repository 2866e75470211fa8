"""Everything a verdict on one request rests on, gathered record by record; `auditor.verdict` judges it.

Feed all of `kv.control` first, then `kv.events` partition by partition in offset order; either may go on
later, control always ahead. Nothing here reads a clock or a broker.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import cast

from auditor.case import AckRead, Age, Base, Late, Resident, StreamCase, Transfer
from auditor.content import Landing, OpenTransfer
from auditor.ending import look
from auditor.fold import StreamFold
from auditor.lineage import Ancestry, Covered, covers, links
from auditor.record import StreamRecord, UnreadableRecord
from auditor.registry import ControlFold, EpochRegistered, Memory, RequestRead
from auditor.residency import HeldCopy, Place, Tables
from auditor.seen import NewSeen, SeenHashes
from auditor.shredding import told_into
from auditor.telling import told_of, transfers_named, without_words
from events.chain import MODULUS, alias
from events.ids import Lineage, StreamKey, VerdictReason
from events.model.batch import Header
from events.model.control import ProfileScope
from events.model.part import (
    Ack,
    BlockInvalidated,
    BlockStored,
    Refused,
    SnapshotBegin,
    TransferStarted,
)
from events.scope import covers_domain, is_whole_domain, scoped_ids
from events.signing import Verify

_STATE = (
    "streams",
    "strangers",
    "unplaced",
    "partition_starts",
    "lineages",
    "scope_domains",
    "told_into",
    "_discharged",
)
MOST_UNPLACED = 10_000
"""Streams whose unreadable records came before anybody had registered them: so many are remembered."""
MOST_AHEAD = 64
"""Streams whose aliases are remembered before any record of theirs was fed."""
NOBODYS = Ancestry()
"""Of a domain of which no block was ever shown."""
_ANSWERS: frozenset[type] = frozenset({Ack, Refused})


class Evidence:
    """For one request. `alias_keys` maps every domain that may be in scope to its alias key. `bound` is set by
    whoever has read `kv.subjects` for a subject's request: every leaf that is bound to the subject by now; with it
    `cut`, at which offset that topic begins, and `missing`, how many offsets behind that nobody could read."""

    def __init__(
        self,
        request: RequestRead,
        registry: ControlFold,
        alias_keys: Mapping[str, bytes],
        verify: Verify,
        *,
        new_seen: NewSeen = SeenHashes,
    ) -> None:
        self.request = request
        self.registry = registry
        self.alias_keys = dict(alias_keys)
        self.streams: dict[StreamKey, StreamCase] = {}
        self.strangers: dict[StreamKey, int] = {}
        self.unplaced: set[StreamKey] = set()
        self.partition_starts: dict[int, int] = {}
        self.lineages: dict[str, Ancestry] = {}
        # See `shredding.told_into`; the orders that were installed when it was first and last told.
        self.told_into: dict[tuple[str, str], tuple[int, int]] = {}
        self.bound: frozenset[bytes] | None = None
        self.cut = 0
        self.missing = 0
        self._named = scoped_ids(request.scope)
        self._bound: frozenset[bytes] | None = None
        self._unnamed = frozenset[bytes]()
        self.everywhere = isinstance(request.scope, ProfileScope)
        """Whether the scope reaches every domain, those without a known name too."""
        self.scope_domains = self.domains()
        self._ahead: dict[tuple[str, int, int], dict[bytes, str]] = {}
        self._lives: dict[Memory, list[StreamCase]] = {}
        self._verify = verify
        self._new_seen = new_seen
        self._discharged: dict[tuple[Memory, str], int] = {}

    def state(self) -> dict[str, object]:
        """What has been gathered so far, for `resume`."""
        return {name: getattr(self, name) for name in _STATE}

    def resume(self, state: Mapping[str, object]) -> None:
        """Goes on where another evidence of the same request, registry and keys stood."""
        for name in _STATE:
            setattr(self, name, state[name])
        for case in self.streams.values():
            self._lives.setdefault(case.epoch.memory, []).append(case)

    @property
    def unnamed(self) -> frozenset[bytes]:
        """Leaves of the subject that the request doesn't name: they were bound too late for it."""
        if self._bound is not self.bound:
            self._bound, self._unnamed = self.bound, (self.bound or frozenset()) - self._named
        return self._unnamed

    def covers(self, domain: str, block: bytes, profile: str | None) -> Covered:
        """Whether a block of a domain in scope is in scope."""
        lineage = self.lineages.get(domain, NOBODYS)
        return covers(self.request.scope, domain, lineage, block, profile, self._named, self.unnamed)

    def reaches_all(self, domain: str) -> bool:
        """Whether everything of a domain that the scope reaches is in scope, whatever is told of it."""
        return not self.everywhere and is_whole_domain(self.request.scope, domain)

    def domains(self) -> frozenset[str]:
        """Domains that the scope reaches as the registry stands now; `scope_domains` is what the streams
        were read for. If they differ the log has to be read again."""
        scope, registry = self.request.scope, self.registry
        known = set(registry.domains) | set(self.alias_keys)
        return frozenset(d for d in known if covers_domain(scope, d, registry.domains.get(d)))

    def aliases(self, worker: str, rank: int, epoch_no: int) -> dict[bytes, str]:
        """alias -> domain in scope, for one stream, in the domains' order: whoever judges the log again gives the same
        reasons in the same order."""
        return {
            alias(self.alias_keys[domain], worker, rank, epoch_no): domain
            for domain in sorted(self.scope_domains)
            if domain in self.alias_keys
        }

    def wanted(self, header: Header) -> Container[bytes] | None:
        """For `auditor.record.read_record`: which parts of this record the evidence needs."""
        if self.everywhere:
            return None
        # A plain tuple is found like the named one, and made in a fraction of its time.
        case = self.streams.get(cast(StreamKey, (header.worker, header.rank, header.epoch)))
        if case is not None and case.epoch.epoch_no == header.epoch_no:
            return case.domains
        # A key is derived for each domain; records are read some way ahead of the one that begins their stream.
        where = header.worker, header.rank, header.epoch_no
        known = self._ahead.get(where)
        if known is None:
            if len(self._ahead) >= MOST_AHEAD:
                self._ahead.clear()
            known = self._ahead[where] = self.aliases(*where)
        return known

    def feed(self, record: StreamRecord | UnreadableRecord) -> None:
        """Takes one record of `kv.events` in. Records in a partition that isn't the stream's don't count."""
        if record.stream is None:
            return
        epoch = self.registry.epochs.get(record.stream)
        if epoch is None:
            if isinstance(record, StreamRecord):
                self.note_stranger(record.stream, record.offset)
            elif len(self.unplaced) < MOST_UNPLACED:
                self.unplaced.add(record.stream)
            return
        if record.partition != epoch.body.partition:
            return
        case = self.streams.get(record.stream) or self._begin(epoch)
        if isinstance(record, UnreadableRecord):
            case.fold.apply_unreadable(record.seq or 0, record.reason)
        else:
            self._apply(case, record)

    def note_stranger(self, stream: StreamKey, offset: int) -> None:
        """Somebody who isn't registered writes a stream."""
        self.strangers[stream] = min(offset, self.strangers.get(stream, offset))

    def age(self, case: StreamCase, place: Place, copy: HeldCopy) -> Age:
        """How old a held copy is for this request. What lies behind a barrier was computed after it."""
        if copy.lineage is Lineage.PREFILL and copy.installed < self.request.number:
            return Age.OLD  # computed here, before the request could be installed
        return self._age(case, place.holder, None if copy.doubted else copy.provenance, copy.seq)

    def claim_age(self, case: StreamCase, moving: OpenTransfer) -> Age:
        """How old what a transfer carries is for this request, by what its start claims."""
        return self._age(case, moving.place.holder, moving.provenance, moving.seq)

    def life_discharged(self, epoch: EpochRegistered, domain: str) -> bool:
        """Whether any epoch of this engine life, up to this one, has discharged the request in the domain."""
        since = self._discharged.get((epoch.memory, domain))
        return since is not None and since <= epoch.epoch_no

    def born(self, epoch: EpochRegistered) -> bool:
        """Whether an epoch can tell of its engine's birth: no earlier one has reported that life, nor may have in what
        the log no longer holds."""
        return not any(
            self.reported(earlier)
            for earlier in self.registry.epochs.values()
            if earlier.life == epoch.life and earlier.epoch_no < epoch.epoch_no
        )

    def reported(self, epoch: EpochRegistered) -> bool:
        """Whether an epoch has told anything, or may have in what retention took."""
        return epoch.stream in self.streams or self.partition_starts.get(epoch.body.partition, 0) > 0

    def _age(self, case: StreamCase, holder: str, provenance: int | None, seq: int) -> Age:
        if provenance is None:
            barrier = case.barriers.get(holder)
            return Age.FRESH if barrier is not None and seq > barrier else Age.UNKNOWN
        return Age.OLD if provenance < self.request.number else Age.FRESH

    def _begin(self, epoch: EpochRegistered) -> StreamCase:
        body = epoch.body
        fold = StreamFold(epoch.stream, epoch.epoch_no, seen=self._new_seen())
        case = StreamCase(epoch, fold, self.aliases(body.worker, body.rank, epoch.epoch_no))
        self._inherit(case)
        self.streams[epoch.stream] = case
        self._lives.setdefault(epoch.memory, []).append(case)
        return case

    def _inherit(self, case: StreamCase) -> None:
        """What earlier epochs of the same engine life left in its memory lies in the new one's shadow."""
        here = {domain: name for name, domain in case.domains.items()}
        for other in self._lives.get(case.epoch.memory, []):
            if other.epoch.epoch_no > case.epoch.epoch_no:
                continue
            for place, table in other.fold.tables.places.items():
                name = here.get(other.domains.get(place.alias, ""))
                if name is not None:
                    shadow = case.fold.tables.shadow.setdefault(place._replace(alias=name), {})
                    shadow.update(
                        (block, None if copy.doubted else copy.provenance) for block, copy in table.items()
                    )
            for place, ids in other.fold.tables.unverified.items():
                name = here.get(other.domains.get(place.alias, ""))
                if name is not None:
                    case.fold.tables.unverified.setdefault(place._replace(alias=name), set()).update(ids)

    def _apply(self, case: StreamCase, record: StreamRecord) -> None:
        header, fold = record.header, case.fold
        known = self.registry.hashes.get(header.control.offset)
        if known != header.control.hash and self.registry.contiguous:
            case.control_disputes.append(header.seq)
        signed = record.signature is not None and self._verify(
            case.epoch.body.public_key, record.signature, record.header_line
        )
        told = record
        if not signed:
            record = without_words(record)
        repeated = header.seq < fold.next_seq
        chained = header.seq == 0 or (bool(fold.prev) and header.prev == fold.prev)  # numbers may be burnt
        ended = look(self, case, record) if header.control.offset >= self.request.number else None
        landed = fold.apply(record)
        if header.seq == 0 and fold.first_prev != case.epoch.record_sha256:
            case.disputes.append(
                (VerdictReason.CHAIN_BREAK, "record 0 doesn't name the registration that was read")
            )
        if repeated:
            return
        case.link(header.seq, chained=chained, signed=signed)
        case.reached = max(case.reached, header.control.offset)
        if not chained:
            case.unvouched.clear()
        if not signed and (record.signature is not None or header.seq == 0 or record is not told):
            case.disputes.append(
                (VerdictReason.SIGNATURE_INVALID, f"the signature of record {header.seq} doesn't hold")
            )
        for begun in record.stream_events:
            if type(begun) is SnapshotBegin and begun.opened.engine_life != case.epoch.body.engine_life:
                what = f"record {header.seq} lists what another engine life holds"
                case.disputes.append((VerdictReason.CHAIN_BREAK, what))
        if landed is None:
            return
        if fold.brought:
            for other in self._lives[case.epoch.memory]:
                other.barriers.clear()
        if ended is not None:
            case.endings.add(ended)
        if header.seq == 0:
            case.opened_under = header.control.offset
        self._learn(case, record, signed=signed)
        for where in told_into(case, record, landed):
            installed = header.control.offset
            first, last = self.told_into.get(where, (installed, -1))
            self.told_into[where] = min(first, installed), max(last, case.reached)
        self._late(case, record, landed)
        if fold.engine_ended and case.ended_seq is None:
            case.ended_seq, case.ended_under = header.seq, header.control.offset
        if fold.status.value == "closed" and case.closed_seq is None:
            case.closed_seq = header.seq
        for name, events in record.parts.items() if not record.kinds.isdisjoint(_ANSWERS) else ():
            domain = self._domain_of(case, name)
            for event in events:
                if type(event) is Ack:
                    self._ack(case, record, domain, name, event)
                elif type(event) is Refused and event.request == self.request.number:
                    case.refusals[domain] = event
                    case.acks.pop(domain, None)
                    case.take_back(domain)

    def _domain_of(self, case: StreamCase, name: bytes) -> str:
        """The domain of an alias; one without a known name goes by its alias (profile scopes only)."""
        domain = case.domains.get(name)
        if domain is None:
            case.strange_aliases.add(name)
            return name.hex()
        return domain

    def _learn(self, case: StreamCase, record: StreamRecord, *, signed: bool) -> None:
        for holder in told_of(record):
            self._told(case, record, holder)
        heir = len(self._lives[case.epoch.memory]) > 1
        for name, events in record.parts.items():
            domain = self._domain_of(case, name)
            keep = not self.everywhere and not self.reaches_all(domain)
            for event in events:
                if type(event) is BlockStored or type(event) is TransferStarted:
                    case.appeared[Place(event.holder, event.group, name)] = record.header.seq
                elif type(event) is BlockInvalidated and event.request == self.request.number:
                    case.removed += len(event.ids)
                if keep:
                    known = self.lineages.get(domain, NOBODYS).parents
                    new = ((domain, *link) for link in links(event) if known.get(link[0]) != link[1])
                    case.unvouched.update(dict.fromkeys(new))
                if heir:
                    names = (name for name in transfers_named(event) if self._left_open(case, domain, name))
                    case.moves.update((domain, name) for name in names)
        if signed:
            for domain, block, parent in case.unvouched:
                lineage = self.lineages.get(domain)
                if lineage is None:
                    lineage = self.lineages[domain] = Ancestry()
                lineage.learn(block, parent)
            case.unvouched.clear()

    def _left_open(self, case: StreamCase, domain: str, transfer: str) -> bool:
        """Whether an earlier epoch of the life has it under way by now."""
        return any(
            name == transfer and other.domains.get(place.alias) == domain
            for other in self._lives[case.epoch.memory]
            if other.epoch.epoch_no < case.epoch.epoch_no
            for name, place in other.fold.transfers
        )

    def _told(self, case: StreamCase, record: StreamRecord, holder: str) -> None:
        """A record tells of copies in a holder, so that its memory was there when it was written."""
        case.told_seq = record.header.seq
        case.told_under[holder] = case.reached

    def _late(self, case: StreamCase, record: StreamRecord, landed: list[Landing]) -> None:
        """Remembers what landed after a discharging ack of this engine life."""
        header = record.header
        for landing in landed:
            if landing.event == "transfer_committed":
                self._told(case, record, landing.place.holder)
            if not landing.ids or not (self._discharged or header.control.offset > self.request.number):
                continue
            domain = self._domain_of(case, landing.place.alias)
            outlived = not self.life_discharged(case.epoch, domain)
            if outlived and not self._outlived(case.epoch, landing, header.control.offset):
                continue
            if landing.event == "snapshot_part" and domain not in case.first_discharge:
                continue  # a re-attached hook's first inventory is judged at its own ack
            profile = self._profile(case, landing)
            age = self._age(case, landing.place.holder, landing.provenance, header.seq)
            if age is Age.FRESH and landing.event in ("snapshot_part", "transfer_started", "tier_changed"):
                continue
            if age is Age.FRESH and (self.everywhere or is_whole_domain(self.request.scope, domain)):
                # whether it is in scope can be told at once: nothing of it has to be kept
                if self.covers(domain, landing.ids[0], profile) is Covered.YES:
                    case.recreated += len(landing.ids)
                continue
            case.late.append(
                Late(
                    landing.event,
                    record.stream,
                    header.seq,
                    record.partition,
                    record.offset,
                    landing.place,
                    domain,
                    landing.ids,
                    profile,
                    landing.provenance,
                    age,
                    header.control.offset,
                    outlived,
                )
            )

    def _outlived(self, epoch: EpochRegistered, landing: Landing, installed: int) -> bool:
        """Whether an epoch that isn't its life's newest says, after the auditor has asked with a nonce, that
        something old came in."""
        number = self.request.number
        old = installed > number and landing.provenance is not None and landing.provenance < number
        if not old or landing.event not in ("block_stored", "transfer_committed"):
            return False
        asked = any(
            offset <= installed for offset, of in self.registry.nonces.items() if of == self.request.number
        )
        return asked and any(
            other.life == epoch.life and other.epoch_no > epoch.epoch_no
            for other in self.registry.epochs.values()
        )

    def _profile(self, case: StreamCase, landing: Landing) -> str | None:
        copy = case.fold.tables.places.get(landing.place, {}).get(landing.ids[0])
        return copy.profile if copy is not None else None

    def _ack(self, case: StreamCase, record: StreamRecord, domain: str, name: bytes, event: Ack) -> None:
        number = self.request.number
        standing = next((one for one in event.requests if one.request == number), None)
        if standing is None or record.header.control.offset < number:
            return
        if standing.old_left == 0:
            self._raise_barriers(case)
        fold = case.fold
        residents: list[Resident] = []
        for place, table in fold.tables.places.items():
            if place.alias == name:
                # Few objects stand for many copies, see HeldCopy: each is judged once, and told apart by identity.
                kinds = {id(copy): copy for copy in table.values()}
                ages = {one: self.age(case, place, copy) for one, copy in kinds.items()}
                if any(age is not Age.FRESH for age in ages.values()):
                    residents += [
                        Resident(place, block, copy.profile, ages[id(copy)])
                        for block, copy in table.items()
                        if ages[id(copy)] is not Age.FRESH
                    ]
        ack = AckRead(
            record.header.seq,
            record.offset,
            record.header.control.offset,
            standing,
            event.nonce,
            tuple(residents),
            {
                holder.name: Base(
                    holder.base_seq,
                    holder.from_opened,
                    holder.inventory,
                    holder.durable_id,
                    holder.orphans,
                    holder.unassigned,
                    holder.base_installed,
                    holder.groups,
                )
                for holder in fold.holders.values()
            },
            self.open_transfers(case, name),
            _held(fold.tables, name),
        )
        case.acks[domain] = ack
        case.refusals.pop(domain, None)
        # what landed with an unknown age before was looked at here, if it is still held
        case.late = [one for one in case.late if one.domain != domain or one.age is not Age.UNKNOWN]
        if ack.discharging:
            case.first_discharge.setdefault(domain, ack)
            case.stands_since.setdefault(domain, ack)
            self._discharged.setdefault((case.epoch.memory, domain), case.epoch.epoch_no)
        else:
            case.take_back(domain)

    def open_transfers(self, case: StreamCase, name: bytes) -> tuple[Transfer, ...]:
        """Transfers of one domain that haven't ended and may carry something old."""
        found: list[Transfer] = []
        for (transfer, _), open_ in case.fold.transfers.items():
            age = self._age(case, open_.place.holder, open_.provenance, open_.seq)
            if open_.place.alias == name and age is not Age.FRESH:
                found.append(Transfer(transfer, open_.ids, age))
        return tuple(found)

    def _raise_barriers(self, case: StreamCase) -> None:
        """The last clear before a discharging ack, or an empty birth, if the request was installed by then:
        whatever an engine without connector or second tier holds behind it was computed afterwards."""
        fold, number = case.fold, self.request.number
        life = self._lives[case.epoch.memory]
        if fold.opened is None or len(fold.holders) != 1:
            return
        if any(one.fold.brought or one.fold.holders.keys() - fold.holders.keys() for one in life):
            return
        for holder in fold.holders.values():
            if holder.durable_id is not None or holder.name in case.barriers:
                continue
            if holder.cleared_seq is not None and holder.cleared_installed >= number:
                case.barriers[holder.name] = holder.cleared_seq
            elif holder.from_opened and case.opened_under >= number and self.born(case.epoch):
                case.barriers[holder.name] = 0


def _held(tables: Tables, name: bytes) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for place in tables.places:
        if place.alias == name:
            count, total = tables.inventory(place)
            before = found.get(place.holder, (0, 0))
            ids = (before[1] + int.from_bytes(total, "big")) % MODULUS
            found[place.holder] = before[0] + count, ids
    return found
