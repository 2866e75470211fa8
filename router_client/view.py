"""The in-memory view: the fold of `kv.events` with a memory store, fed record by record, asked at any time.

Pure: clocks are injected, nothing here waits. The lookup service and a router's own process feed the same
class, so they give the same answers. Feed it from one thread.

Memory is bounded by policy: a stream whose record takes the view above `max_copies` is shed. It is left out
of answers as a gap until the view is at nine tenths of its bound again and the stream's next snapshot has made
it whole; until then it lowers the coverage, never the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from events.codec import BatchDecodeError, decode_batch, decode_pulse, decode_quota, decode_signal
from events.errors import DecodeError
from events.fold.apply import apply, apply_undecodable, lose_log
from events.fold.change import Changes, Outcome
from events.fold.registry import Registry
from events.fold.staleness import REMEMBERED_BEACONS, BeaconBook
from events.fold.state import StreamState
from events.fold.stranger import counts, misplaced
from events.ids import CANARY_WORKER, StreamKey, StreamStatus, Tier, Unit
from events.keyring import KeyRing
from events.model.audit import QuotaState
from events.model.control import (
    ControlBody,
    ControlRecord,
    ExitAttested,
    Fenced,
    HolderDestroyed,
    HolderEnrolled,
    Registered,
)
from events.model.signal import Beacon
from events.token import Token
from router_client.index import PrefixIndex
from router_client.limit import MILLISECOND_NS, Counters, ViewLimits
from router_client.link import relink
from router_client.stream_view import MAX_PENDING, StreamView
from router_client.veil import MAX_VEILS, VeilBook

STRANGER_MARKS = 1_000
"""Small state that a stream of nobody may have; see `ViewLimits.max_marks`."""


@dataclass(slots=True)
class LocalView:
    """State of one reader. `registry` is fed by whoever tails `kv.control`; `control_current_ns` asks that
    tail when its last fetch that reached the end was started."""

    reader: str
    registry: Registry
    keyring: KeyRing
    control_current_ns: Callable[[], int | None]
    limits: ViewLimits = field(default_factory=ViewLimits)
    index: PrefixIndex = field(default_factory=PrefixIndex)
    streams: dict[StreamKey, StreamView] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    quotas: dict[tuple[str, Tier, Unit], QuotaState] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    profiles_seen: dict[str, dict[str, tuple[str | None, str | None]]] = field(default_factory=dict)
    """By domain, the profiles that any stream ever declared here: id -> (model, adapter)."""
    caught_up: bool = False
    copies: int = 0
    transit_ms: float = 0.0
    newest_signal: int = -1
    newest_beacon: tuple[int, bytes] | None = None
    """(offset, nonce) of the newest beacon of anybody that was read back here."""
    former: dict[StreamKey, StreamState] = field(default_factory=dict)
    """Superseded streams without their copies, for how they stand to orders."""
    _strangers: dict[StreamKey, None] = field(default_factory=dict)
    _waiting: dict[StreamKey, StreamView] = field(default_factory=dict)
    _token: tuple[int, int, str] = (-1, -1, "")
    _version: int = 0

    def __post_init__(self) -> None:
        self.book = BeaconBook(self.reader)
        self.veils = VeilBook(self.registry)

    book: BeaconBook = field(init=False)
    veils: VeilBook = field(init=False)

    def position(self, partition: int) -> int:
        """Next offset of `kv.events` to read in a partition."""
        return self.positions.get(partition, 0)

    def token(self) -> str:
        """Stands for everything that is applied now."""
        control = self.registry.next_offset
        if self._token[:2] != (self._version, control):
            count = max([self.registry.partitions, *(p + 1 for p in self.positions)])
            events = tuple(self.position(p) for p in range(count))
            self._token = (self._version, control, Token(self.registry.log, events, control).encode())
        return self._token[2]

    def reached(self, token: Token) -> bool:
        """Whether everything that a token of this log stands for is applied here."""
        return token.control <= self.registry.next_offset and all(
            at <= self.position(p) for p, at in enumerate(token.events)
        )

    def restore(
        self, states: Iterable[tuple[int, StreamState]], positions: dict[int, int], now_ns: int = 0
    ) -> None:
        """Starts from a snapshot: (partition, fold state) of every stream, and the next offset by partition.
        The bounds are those of records, and so is what may come in from which partition. Call it before any
        record is applied."""
        for partition, state in states:
            key = state.key
            if key in self.streams or misplaced(self.registry, key, partition):
                continue
            if self._foreign(key):
                self._archive(state)
                continue
            if self._full(key):
                continue
            view = StreamView(state, partition, self.index, met_ns=now_ns)
            view.copy_count = state.copy_count()
            self.streams[key] = view
            self._note_stranger(key)
            self._remember_profiles(view, state.profiles)
            self.copies += view.copy_count
            self._keep_bounds(view)
            if not view.shed and key in self.streams and self._indexable(view):
                view.restore()
        self.positions.update(positions)
        relink(self.streams, self.registry)
        self._version += 1

    def apply_record(self, partition: int, offset: int, value: bytes, now_ns: int) -> Changes | None:
        """One record of `kv.events`, in offset order within its partition. None: redelivered, or of nobody
        that is followed here. Total: no bytes make it raise."""
        if offset < self.position(partition):
            return None
        self.positions[partition] = offset + 1
        self._version += 1
        self.counters.records += 1
        try:
            batch = decode_batch(value)
        except BatchDecodeError as error:
            self.counters.undecodable += 1
            view = self.streams.get(error.stream) if error.stream is not None else None
            if view is None or view.shed or error.seq is None or view.partition != partition:
                return None
            changes = apply_undecodable(view.state, error.seq, error.reason)
        else:
            view = self._view_of(batch.header.stream, batch.header.epoch_no, partition, now_ns)
            if view is None or view.partition != partition:
                return None
            changes = apply(view.state, batch)
        if changes.outcome not in (Outcome.APPLIED, Outcome.DUPLICATE):
            self.counters.faults += 1
        self.counters.block_operations += changes.block_operations
        self._follow(view, changes, now_ns)
        return changes

    def apply_pulse(self, value: bytes, now_ns: int) -> None:
        """One record of `kv.pulse`. Pulses of streams that nobody registered are not kept."""
        try:
            pulse = decode_pulse(value)
        except DecodeError:
            self.counters.bad_pulses += 1
            return
        self.counters.pulses += 1
        for rank in pulse.ranks:
            key = StreamKey(pulse.worker, rank.rank, rank.epoch)
            registration = self.registry.registration_of(key)
            if registration is None or self._foreign(key):
                continue
            if len(rank.checksums) > self.limits.max_checksums:
                self.counters.forget("pulses")
                continue
            view = self._view_of(key, registration.epoch_no, registration.body.partition, now_ns)
            if view is not None:
                view.heard(rank, now_ns)
                self._settle(view, now_ns)

    def apply_signal(self, offset: int, value: bytes, now_ns: int) -> None:
        """One record of `kv.signals`. An offset that doesn't grow means a truncated log."""
        if offset <= self.newest_signal:
            self.signals_truncated()
        self.newest_signal = offset
        try:
            signal = decode_signal(value)
        except DecodeError:
            self.counters.bad_signals += 1
            return
        if isinstance(signal, Beacon):
            self.book.read_back(offset, signal.reader, signal.nonce)
            self.newest_beacon = (offset, signal.nonce)
            for view in list(self._waiting.values()):
                self._settle(view, now_ns)

    def signals_truncated(self) -> None:
        """`kv.signals` lost records: no echo of what was in it can be trusted any more."""
        self.book.truncated()
        self.newest_signal = -1
        self.newest_beacon = None
        for view in self.streams.values():
            view.pending.clear()
        self._waiting.clear()

    def apply_quota(self, value: bytes) -> None:
        """One record of `kv.quota`; the newest of a key wins, whoever reads later states again."""
        try:
            quota = decode_quota(value)
        except DecodeError:
            self.counters.bad_signals += 1
            return
        known = self.quotas.get((quota.tenant, quota.tier, quota.unit))
        if known is None or quota.term >= known.term:
            self.quotas.pop((quota.tenant, quota.tier, quota.unit), None)
            self.quotas[quota.tenant, quota.tier, quota.unit] = quota
            if len(self.quotas) > self.limits.max_quotas:
                del self.quotas[next(iter(self.quotas))]
                self.counters.forget("quotas")

    def control_folded(self, record: ControlRecord | None, why: str) -> None:
        """The registry has just folded a record; superseded, fenced and ended streams leave the index at
        once."""
        if record is None or why not in ("", "conflicting_registration"):
            return
        body = record.body
        self._obey(body)
        if isinstance(body, ExitAttested | Registered | Fenced | HolderEnrolled | HolderDestroyed):
            relink(self.streams, self.registry)

    @property
    def beacon_returned(self) -> bool:
        """Whether an own beacon was read back here, so that echoes can count."""
        newest = self.newest_beacon
        return newest is not None and self.book.begun_at(*newest) is not None

    def _obey(self, body: ControlBody) -> None:
        if isinstance(body, ExitAttested):
            for view in self.streams.values():
                if view.key.worker == body.worker and not self._indexable(view):
                    view.unindex()
            for key in [key for key in self.former if self.registry.ended(key)]:
                del self.former[key]
        if isinstance(body, Registered):
            named = StreamKey(body.worker, body.rank, body.epoch)
            known = self.streams.get(named)
            if known is not None and misplaced(self.registry, named, known.partition):
                self._forget(named)
            for key in [k for k in self.streams if (k.worker, k.rank) == (body.worker, body.rank)]:
                if self._foreign(key):
                    self._forget(key)
            if named in self._strangers:
                del self._strangers[named]
                self._admit(named)
        if isinstance(body, Registered | Fenced):
            known = self.streams.get(StreamKey(body.worker, body.rank, body.epoch))
            if known is not None and not self._indexable(known):
                known.unindex()

    def partition_lost(self, partition: int, next_offset: int) -> None:
        """The log no longer holds what comes next in a partition: every stream of it is in gap until its
        snapshot, and reading goes on at `next_offset`. This view is behind until its feed says otherwise."""
        self.positions[partition] = next_offset
        self.caught_up = False
        self._version += 1
        for view in self.streams.values():
            if view.partition == partition:
                lose_log(view.state, "the log lost records")

    def work(self, steps: int) -> bool:
        """Goes on with what index changes left over; true when nothing is left."""
        return self.index.work(steps)

    def held(self) -> dict[str, tuple[float, float]]:
        """By kind, (how much is held now, the most that may be). No bound but the log's own: infinite."""
        limits, infinite = self.limits, float("inf")
        seen = sum(map(len, self.profiles_seen.values()))
        return {
            "copies": (self.copies, limits.max_copies),
            "refused_stores": (len(self.index.refused), limits.max_copies),
            "streams": (len(self.streams) - len(self._strangers), limits.max_streams),
            "strangers": (len(self._strangers), limits.max_strangers),
            "former_streams": (len(self.former), limits.max_former),
            "pending_pulses": (
                sum(len(view.pending) for view in self._waiting.values()),
                MAX_PENDING * limits.max_streams,
            ),
            "profiles_seen": (seen, limits.max_profiles_seen * max(1, len(self.keyring))),
            "quotas": (len(self.quotas), limits.max_quotas),
            "beacons": (len(self.book), REMEMBERED_BEACONS),
            "veils": (len(self.veils), MAX_VEILS),
            "orders": (len(self.registry.deletions), infinite),
            "idempotency_keys": (len(self.registry.idempotency), infinite),
            "registrations": (len(self.registry.registrations), infinite),
        }

    def floor_ms(self) -> float:
        """The bound below which no answer can be counted on: both intervals and the fastest way of a beacon
        to a hook and back that was seen."""
        return self.limits.beacon_interval_ms + self.limits.pulse_interval_ms + self.transit_ms

    def _view_of(self, key: StreamKey, epoch_no: int, partition: int, now_ns: int) -> StreamView | None:
        view = self.streams.get(key)
        if view is None:
            if self._foreign(key) or misplaced(self.registry, key, partition) or self._full(key):
                return None
            view = StreamView(StreamState(key, epoch_no), partition, self.index, met_ns=now_ns)
            self.streams[key] = view
            self._note_stranger(key)
        if view.shed:
            if self.copies > self.limits.max_copies * 9 // 10:
                return None
            view.shed = False
        return view

    def _note_stranger(self, key: StreamKey) -> None:
        """Whoever can write can name streams: those of nobody may not push out any that are registered."""
        if key in self.registry.registrations:
            return
        self._strangers[key] = None
        if len(self._strangers) > self.limits.max_strangers:
            self._forget_stranger()

    def _forget_stranger(self) -> None:
        oldest = next(iter(self._strangers))
        self._forget(oldest)
        self.counters.forgotten_strangers += 1

    def _foreign(self, key: StreamKey) -> bool:
        """Whether a later registration has superseded the stream, so that nothing of it matters here."""
        return key in self.registry.registrations and self.registry.superseded(key)

    def _full(self, key: StreamKey) -> bool:
        """Whether one registered stream more would be too many."""
        if (
            key not in self.registry.registrations
            or len(self.streams) - len(self._strangers) < self.limits.max_streams
        ):
            return False
        self.counters.refused_streams += 1
        return True

    def _indexable(self, view: StreamView) -> bool:
        """Nobody asks of a stream that isn't registered, and its copies may not stand in anybody's way."""
        return (
            counts(self.registry, view.key)
            and view.key not in self.registry.fenced
            and not self.registry.ended(view.key)
            and view.state.status is not StreamStatus.CLOSED
            and not self._foreign(view.key)
        )

    def _follow(self, view: StreamView, changes: Changes, now_ns: int) -> None:
        before = view.copy_count
        signature, layout = view.signature, view.layout is None
        indexable = self._indexable(view)
        if indexable or view.layout is not None:
            view.take(changes)
        if not indexable:
            view.unindex()
            view.copy_count = view.state.copy_count()
        if changes.profiles:
            self._remember_profiles(view, changes.profiles)
        if changes.standings:
            view.stood(changes.standings, self.registry)
        if (view.signature, view.layout is None) != (signature, layout) and view.durable:
            relink(self.streams, self.registry)
        self.copies += view.copy_count - before
        self._keep_bounds(view)
        if view.key not in self.streams:
            return
        if view.shed:
            relink(self.streams, self.registry)
        self._settle(view, now_ns)

    def _admit(self, key: StreamKey) -> None:
        """A stream that was read before its registration counts from now on, within the bounds."""
        if len(self.streams) - len(self._strangers) > self.limits.max_streams:
            self.counters.refused_streams += 1
            self._forget(key)
            return
        view = self.streams[key]
        if view.layout is None and not view.shed and self._indexable(view):
            view.restore()

    def _keep_bounds(self, view: StreamView) -> None:
        """Strangers go first, then the stream itself: it is shed; one of nobody is forgotten."""
        while self.copies > self.limits.max_copies and self._strangers:
            self._forget_stranger()
        if view.key not in self.streams:
            return
        marks = _marks(view.state)
        if view.key in self._strangers and marks > STRANGER_MARKS:
            self._forget(view.key)
            self.counters.forgotten_strangers += 1
            return
        if self.copies > self.limits.max_copies or marks > self.limits.max_marks:
            self._shed(view)

    def _remember_profiles(self, view: StreamView, changed: Iterable[tuple[bytes, int]]) -> None:
        """So that a fleet that restarts is told apart from a profile that nobody ever had."""
        state = view.state
        aliases = self.keyring.aliases(state.key.worker, state.key.rank, state.epoch_no)
        for alias, number in changed:
            declared = state.profiles[alias, number]
            domain = aliases.get(alias)
            seen = self.profiles_seen.setdefault(domain, {}) if domain is not None else {}
            if declared.id in seen or len(seen) < self.limits.max_profiles_seen:
                seen[declared.id] = (declared.content.model, declared.content.adapter)
            else:
                self.counters.forget("profiles_seen")

    def _shed(self, view: StreamView) -> None:
        """Forgets a stream's copies. What is folded of it later starts in a gap; what no snapshot heals, and
        whose it is, stays known. Whoever calls links anew."""
        self.copies -= view.copy_count
        former, state = view.state, StreamState(view.key, view.state.epoch_no)
        state.status, state.fault = StreamStatus.GAP, "over this reader's memory bound"
        if former.sticky or former.status is StreamStatus.CLOSED:
            state.status, state.fault, state.sticky = former.status, former.fault, former.sticky
        state.first_prev, state.draining = former.first_prev, former.draining
        view.start_over(state)
        view.shed = True
        self._waiting.pop(view.key, None)
        self.counters.shed += 1

    def _forget(self, key: StreamKey) -> None:
        view = self.streams.pop(key)
        self._waiting.pop(key, None)
        self._strangers.pop(key, None)
        view.unindex()
        self.copies -= view.copy_count
        self._archive(view.state)
        if view.durable:
            relink(self.streams, self.registry)

    def _archive(self, state: StreamState) -> None:
        """A superseded stream still stands to orders until its engine's end is attested."""
        if (
            state.key in self.registry.registrations
            and state.standings
            and not self.registry.ended(state.key)
        ):
            former = StreamState(state.key, state.epoch_no)
            former.standings = state.standings
            self.former[state.key] = former
            if len(self.former) > self.limits.max_former:
                del self.former[next(iter(self.former))]
                self.counters.forget("former")

    def _settle(self, view: StreamView, now_ns: int) -> None:
        found = view.settle(self.book, self.newest_signal)
        if found is not None and view.key.worker != CANARY_WORKER:
            loop_ms = (now_ns - found) / MILLISECOND_NS
            fastest = min(loop_ms, self.limits.max_transit_ms)
            # Slowly forgotten, so that one lucky round doesn't set the floor for ever.
            self.transit_ms = fastest if self.transit_ms == 0 else min(fastest, self.transit_ms * 1.01)
        if view.pending:
            self._waiting[view.key] = view
        else:
            self._waiting.pop(view.key, None)


def _marks(state: StreamState) -> int:
    """What a stream holds besides its copies."""
    return (
        len(state.profiles)
        + len(state.standings)
        + len(state.transfers)
        + len(state.usage)
        + len(state.checksums)
        + len(state.interned)
        + len(state.nonces)
    )
