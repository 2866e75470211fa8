"""An `EngineStream` whose every word goes through the real codec into the real fold, compared as it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from events.chain import alias
from events.codec import decode_batch, encode_batch
from events.fold.apply import apply
from events.fold.change import Outcome
from events.fold.state import Copy, StreamState
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import EngineBatch, EngineEvent, EngineHash
from events.hooks.engine_stream import EngineStream
from events.hooks.translation import Translation
from events.ids import CopyState, StreamKey
from events.keyring import KeyRing
from events.model.batch import ControlPosition
from events.model.part import DomainEvent, StreamEvent
from events.model.profile import ContentProfile

CONTENT = ContentProfile(
    model="tiny",
    revision="r1",
    tokenizer_revision="t1",
    attention="full",
    position_encoding="rope",
    kv_dtype="fp32",
    block_tokens=16,
)
RING = KeyRing({name: name.encode().ljust(32, b".") for name in ("default", "acme", "acme/anna", "umbrella")})


class FoldedStream:
    """Feed it batches; `state` is what a reader has. Raises AssertionError when a record is illegal or the
    two sides differ."""

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        worker: str = "w0",
        rank: int = 0,
        ring: KeyRing = RING,
        bound: Mapping[bytes, str] | None = None,
        life: str = "life-1",
        learn: Sequence[EngineBatch] = (),
        from_birth: bool = True,
    ) -> None:
        self.ring = ring
        self.stream = EngineStream(
            worker, rank, ring, config or EngineConfig(content=CONTENT), bound_salts=lambda: bound or {}
        )
        self.worker = worker
        self.rank = rank
        self.translations: list[Translation] = []
        self.sizes: list[int] = []
        self._epochs = 0
        self._engine_seq = 0
        self.stream.learn(learn)
        self.open(life, from_birth=from_birth)

    def open(self, life: str, *, from_birth: bool = True) -> None:
        """A new epoch: the reader starts over."""
        self._epochs += 1
        self._seq = 0
        self._prev = bytes(32)
        self._engine_seq = 0
        self.state = StreamState(StreamKey(self.worker, self.rank, f"e{self._epochs}"), self._epochs)
        self.write([self.stream.open(life, from_birth=from_birth)], {})

    def feed(self, batch: EngineBatch, admitted_after: int | None = None) -> Translation:
        """One engine batch, as far as the reader; an empty translation is no record."""
        translation = self.stream.translate(batch, admitted_after)
        self.take(translation)
        return translation

    def events(self, *events: EngineEvent, admitted_after: int | None = None) -> Translation:
        """The same for hand-made events of one step."""
        batch = EngineBatch(self._engine_seq, self.rank, None, events, bytes(32))
        self._engine_seq += 1
        return self.feed(batch, admitted_after)

    def take(self, translation: Translation) -> None:
        self.translations.append(translation)
        if translation.epoch_due:
            self._open_again()
        elif translation:
            self.write(translation.stream_events, translation.parts)
        self.compare()

    def _open_again(self) -> None:
        """As the hook does: the engine goes on, its stream is another one."""
        engine_seq = self._engine_seq
        self.open(self.stream.engine_life)
        self._engine_seq = engine_seq
        self.snapshot()

    def snapshot(self, name: str = "s1") -> int:
        """Takes a whole snapshot; returns its number of records."""
        count = 0
        for record in self.stream.snapshot(name):
            self.write(record.stream_events, record.parts)
            count += 1
        self.compare()
        return count

    def remove(self, hashes: Iterable[EngineHash], request: int) -> Translation:
        translation = self.stream.removed(hashes, request)
        self.take(translation)
        return translation

    def lose(self, first: int, last: int | None = None) -> None:
        self.write([self.stream.lost(first, last)], {})
        self.compare()

    def write(self, stream_events: Sequence[StreamEvent], parts: Mapping[str, Sequence[DomainEvent]]) -> None:
        record = encode_batch(
            worker=self.worker,
            rank=self.rank,
            epoch=self.state.key.epoch,
            epoch_no=self.state.epoch_no,
            seq=self._seq,
            prev=self._prev,
            control=ControlPosition(offset=1, hash=bytes(32)),
            stream_events=stream_events,
            parts=[(self.alias_of(domain), events) for domain, events in parts.items()],
        )
        self._seq, self._prev = record.seq + 1, record.header_sha256
        self.sizes.append(len(record.value))
        changes = apply(self.state, decode_batch(record.value))
        assert changes.outcome is Outcome.APPLIED, changes.detail
        assert not self.state.fault, self.state.fault

    def compare(self) -> None:
        """The reader's checksums, orphan counts and inventories are those of the stream."""
        read: dict[tuple[str, int], list[int]] = {}
        for (_, holder, group), checksum in self.state.checksums.items():
            sums = read.setdefault((holder, group), [0, 0])
            sums[0] += checksum.count
            sums[1] += checksum.total
        for own in self.stream.checksums():
            count, total = read.get((own.holder, own.group), [0, 0])
            assert (own.count, int.from_bytes(own.checksum)) == (count, total % (1 << 128))
        self.write([], self.stream.statements())
        assert not self.state.fault, self.state.fault
        holders = self.state.holders.values()
        assert self.stream.orphan_counts() == (
            sum(holder.orphans for holder in holders),
            sum(holder.unassigned for holder in holders),
        )
        if self.state.copy_count() < 1_000:
            self.compare_copies()

    def compare_copies(self) -> None:
        """The reader has every copy as the stream has it: a snapshot would change nothing."""
        for table in self.stream._holders.tables():
            own = {
                block: (
                    copy.node.parent_block or bytes(16),
                    CopyState.COMMITTED if copy.certain else CopyState.UNCERTAIN,
                    copy.lineage,
                    copy.admitted_after,
                )
                for block, copy in table.copies.items()
            }
            read = {
                block: (parent, attributes.state, attributes.lineage, attributes.admitted_after)
                for block, (parent, attributes) in self.copies(table.holder.name, table.index).items()
            }
            assert own == read

    def alias_of(self, domain: str) -> bytes:
        return alias(self.ring[domain].alias_key, self.worker, self.rank, self.state.epoch_no)

    def copies(self, holder: str = "gpu", group: int = 0, domain: str | None = None) -> dict[bytes, Copy]:
        """What the reader holds, of one domain if told."""
        table = self.state.copies.get((holder, group), {})
        if domain is None:
            return table
        name = self.alias_of(domain)
        return {block: copy for block, copy in table.items() if copy[1].alias == name}

    def credited(self, holder: str = "gpu", group: int = 0) -> set[bytes]:
        """Ids that a reader would answer with."""
        return {
            block
            for block, (_, attributes) in self.state.copies.get((holder, group), {}).items()
            if attributes.state is CopyState.COMMITTED
        }
