"""Everything a verdict on one request rests on, gathered record by record; `auditor.verdict` judges it.

Feed all of `kv.control` first, then `kv.events` partition by partition in offset order; either may go on
later, control always ahead. Nothing here reads a clock or a broker.

Which record of which stream counts is decided here; what is then learnt of it, each by its own rule: what is in scope
(`known_scope`), how old a copy is (`age`), what its events say besides (`telling`), what an ack says (`ack`), what
comes late (`late`), how copies end (`ending`), and what a new epoch takes over (`inheritance`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, cast

from auditor.ack import read_ack
from auditor.age import Ages, drop_barriers
from auditor.case import StreamCase
from auditor.ending import look
from auditor.fold import StreamFold
from auditor.inheritance import inherit
from auditor.known_scope import KnownScope
from auditor.late import Latecomers
from auditor.record import StreamRecord, UnreadableRecord
from auditor.registry import ControlFold, EpochRegistered, Memory, RequestRead
from auditor.seen import NewSeen, SeenHashes
from auditor.shredding import told_into
from auditor.telling import learn, without_words
from events.ids import StreamKey, VerdictReason
from events.model.batch import Header
from events.model.part import Ack, Refused, SnapshotBegin
from events.signing import Verify

MOST_UNPLACED = 10_000
"""Streams whose unreadable records came before anybody had registered them: so many are remembered."""
_ANSWERS: frozenset[type] = frozenset({Ack, Refused})


class Evidence:
    """For one request; `alias_keys` as in `KnownScope`."""

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
        self.scope = KnownScope(request, registry, alias_keys)
        self.ages = Ages(request.number)
        self.streams: dict[StreamKey, StreamCase] = {}
        self.strangers: dict[StreamKey, int] = {}
        self.unplaced: set[StreamKey] = set()
        self.partition_starts: dict[int, int] = {}
        # See `shredding.told_into`; the orders that were installed when it was first and last told.
        self.told_into: dict[tuple[str, str], tuple[int, int]] = {}
        self._late = Latecomers(self.scope, registry, self.ages)
        self._lives: dict[Memory, list[StreamCase]] = {}
        self._verify = verify
        self._new_seen = new_seen

    def state(self) -> dict[str, object]:
        """What has been gathered so far, for `resume`."""
        return {
            "streams": self.streams,
            "strangers": self.strangers,
            "unplaced": self.unplaced,
            "partition_starts": self.partition_starts,
            "lineages": self.scope.lineages,
            "scope_domains": self.scope.domains,
            "told_into": self.told_into,
            "_discharged": self._late.discharged,
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on where another evidence of the same request, registry and keys stood."""
        self.streams = state["streams"]
        self.strangers = state["strangers"]
        self.unplaced = state["unplaced"]
        self.partition_starts = state["partition_starts"]
        self.scope.lineages = state["lineages"]
        self.scope.domains = state["scope_domains"]
        self.told_into = state["told_into"]
        self._late.discharged = state["_discharged"]
        for case in self.streams.values():
            self._lives.setdefault(case.epoch.memory, []).append(case)

    def wanted(self, header: Header) -> Container[bytes] | None:
        """For `auditor.record.read_record`: which parts of this record the evidence needs."""
        if self.scope.everywhere:
            return None
        # A plain tuple is found like the named one, and made in a fraction of its time.
        case = self.streams.get(cast(StreamKey, (header.worker, header.rank, header.epoch)))
        if case is not None and case.epoch.epoch_no == header.epoch_no:
            return case.domains
        return self.scope.aliases_ahead(header.worker, header.rank, header.epoch_no)

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

    def _begin(self, epoch: EpochRegistered) -> StreamCase:
        body = epoch.body
        fold = StreamFold(epoch.stream, epoch.epoch_no, seen=self._new_seen())
        case = StreamCase(epoch, fold, self.scope.aliases(body.worker, body.rank, epoch.epoch_no))
        inherit(case, self._lives.get(epoch.memory, ()))
        self.streams[epoch.stream] = case
        self._lives.setdefault(epoch.memory, []).append(case)
        return case

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
        life = self._lives[case.epoch.memory]
        if fold.brought:
            drop_barriers(life)
        if ended is not None:
            case.endings.add(ended)
        if header.seq == 0:
            case.opened_under = header.control.offset
        learn(
            self.scope,
            case,
            record,
            landed,
            signed=signed,
            earlier=[one for one in life if one.epoch.epoch_no < case.epoch.epoch_no],
        )
        for where in told_into(case, record, landed):
            installed = header.control.offset
            first, last = self.told_into.get(where, (installed, -1))
            self.told_into[where] = min(first, installed), max(last, case.reached)
        self._late.take(case, record, landed)
        if fold.engine_ended and case.ended_seq is None:
            case.ended_seq, case.ended_under = header.seq, header.control.offset
        if fold.status.value == "closed" and case.closed_seq is None:
            case.closed_seq = header.seq
        if not record.kinds.isdisjoint(_ANSWERS):
            self._take_answers(case, record)

    def _take_answers(self, case: StreamCase, record: StreamRecord) -> None:
        for name, events in record.parts.items():
            domain = case.domain_of(name)
            for event in events:
                if type(event) is Ack:
                    self._take_ack(case, record, domain, name, event)
                elif type(event) is Refused and event.request == self.request.number:
                    case.refuse(domain, event)

    def _take_ack(self, case: StreamCase, record: StreamRecord, domain: str, name: bytes, event: Ack) -> None:
        number = self.request.number
        standing = next((one for one in event.requests if one.request == number), None)
        if standing is None or record.header.control.offset < number:
            return
        if standing.old_left == 0:
            self.ages.raise_barriers(case, self._lives[case.epoch.memory], self.born)
        ack = read_ack(self.ages, case, record, name, event, standing)
        case.answer(domain, ack)
        if ack.discharging:
            self._late.discharge(case.epoch, domain)
