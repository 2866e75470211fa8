"""A fleet and one reader in virtual time: real bytes through the real codec into a real view, no services."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from events.chain import MODULUS, sha256
from events.codec import dump
from events.fold.registry import Registry
from events.identity import pack_tokens, profile_digest, root_parent
from events.ids import Alarm, Basis, EvictReason, Role, Tier
from events.keyring import KeyRing
from events.model.batch import ControlPosition
from events.model.control import DomainCreated, Registered
from events.model.part import BlockEvicted, BlockStored, DomainEvent, Group, ProfileDeclared, StreamEvent
from events.model.profile import ContentProfile
from events.model.signal import Beacon, Echo, Load, Pulse, PulseChecksum, RankPulse
from events.signing import Signer, verify
from router_client.answer import answer
from router_client.limit import ViewLimits
from router_client.problem import Problem
from router_client.query import make_query
from router_client.view import LocalView
from router_client.wire import Answer, LookupRequest
from tests.support.log import PROFILE, ControlLog, StreamBuilder, opened

MS = 1_000_000
DOMAIN, TENANT = "default", "default"
RING = KeyRing({DOMAIN: b"d" * 32, "acme": b"a" * 32})


def chain_of(
    tokens: Sequence[int], *, domain: str = DOMAIN, profile: ContentProfile = PROFILE, size: int = 16
) -> list[bytes]:
    """Block ids of a prompt, as a hook makes them."""
    root = root_parent(profile_digest(profile))
    return RING[domain].hasher().chain(root, pack_tokens(tokens), size)


@dataclass
class Hook:
    """One stream's writer. Records go to the view at once unless `hold` is set."""

    world: World
    builder: StreamBuilder
    key: Signer
    life: str = "life-1"
    hold: bool = False
    held: list[bytes] = field(default_factory=list)
    copies: dict[tuple[str, int], set[bytes]] = field(default_factory=dict)

    def alias(self, domain: str = DOMAIN) -> bytes:
        b = self.builder
        return RING[domain].alias(b.worker, b.rank, b.epoch_no)

    def write(
        self, *stream_events: StreamEvent, events: Sequence[DomainEvent] = (), domain: str = DOMAIN
    ) -> bytes:
        """Seals a record and, unless held, hands it to the view."""
        parts = [(self.alias(domain), list(events))] if events else []
        record = self.builder.seal(*stream_events, parts=parts)
        if self.hold:
            self.held.append(record.value)
        else:
            self.world.deliver(record.value)
        return record.value

    def release(self) -> None:
        for value in self.held:
            self.world.deliver(value)
        self.held.clear()

    def open(
        self,
        *tiers: Tier,
        groups: Sequence[Group] = (),
        profile: ContentProfile = PROFILE,
        domain: str = DOMAIN,
    ) -> None:
        start = opened(*tiers, groups=groups)
        self.write(
            start,
            events=[ProfileDeclared(profile=0, content=profile, block_bytes=(100,))],
            domain=domain,
        )

    def store(
        self,
        ids: Sequence[bytes],
        parent: bytes | None = None,
        *,
        holder: str = "gpu",
        group: int = 0,
        domain: str = DOMAIN,
    ) -> bytes:
        self.copies.setdefault((holder, group), set()).update(ids)
        stored = BlockStored(holder=holder, group=group, profile=0, ids=tuple(ids), parent=parent)
        return self.write(events=[stored], domain=domain)

    def evict(
        self, ids: Sequence[bytes], *, holder: str = "gpu", group: int = 0, certain: bool = True
    ) -> bytes:
        if certain:
            self.copies.setdefault((holder, group), set()).difference_update(ids)
        gone = BlockEvicted(
            holder=holder, group=group, ids=tuple(ids), reason=EvictReason.CAPACITY, certain=certain
        )
        return self.write(events=[gone])

    def pulse(
        self,
        *,
        echo: Echo | None = None,
        basis: Basis = Basis.PUBLISHED,
        checksums: bool = True,
        next_seq: int | None = None,
        prev: bytes | None = None,
        load: Load | None = None,
        alarm: Alarm | None = None,
    ) -> bytes:
        """This stream's pulse, echoing the newest beacon unless told otherwise."""
        b = self.builder
        stated = tuple(
            PulseChecksum(
                holder=holder,
                group=group,
                count=len(ids),
                checksum=(sum(int.from_bytes(i, "big") for i in ids) % MODULUS).to_bytes(16, "big"),
            )
            for (holder, group), ids in self.copies.items()
        )
        rank = RankPulse(
            rank=b.rank,
            epoch=b.epoch,
            next_seq=b.seq if next_seq is None else next_seq,
            prev=b.prev if prev is None else prev,
            basis=basis,
            echo=echo or self.world.newest,
            checksums=stated if checksums else (),
            load=load,
            alarm=alarm,
        )
        value = dump(Pulse(worker=b.worker, ranks=(rank,)))
        self.world.view.apply_pulse(value, self.world.now_ns)
        return value


class World:
    """`now_ns` only moves when told to. kv.control is current at every moment unless `control_ns` is set."""

    def __init__(self, *, limits: ViewLimits | None = None, domains: Sequence[tuple[str, str]] = ()) -> None:
        self.now_ns = 1_000_000 * MS
        self.control_ns: int | None = None
        self.log = ControlLog()
        self.registry = Registry(verify)
        self.view = LocalView(
            reader="reader",
            registry=self.registry,
            keyring=RING,
            control_current_ns=lambda: self.now_ns if self.control_ns is None else self.control_ns,
            limits=limits or ViewLimits(),
        )
        self.newest: Echo | None = None
        self._signals = 0
        self._events = 0
        self._nonces = 0
        for domain, tenant in ((DOMAIN, TENANT), *domains):
            self.log.append(DomainCreated(domain=domain, tenant=tenant), Role.CONTROL)
        self.follow_control()

    def follow_control(self) -> None:
        for offset in range(self.registry.next_offset, len(self.log.records)):
            value, signature = self.log.records[offset]
            self.view.control_folded(*self.registry.fold(offset, value, signature))

    def order(self, body: Any, role: Role = Role.CONTROL) -> int:
        number = self.log.append(body, role)
        self.follow_control()
        return number

    def join(
        self,
        worker: str = "w0",
        rank: int = 0,
        epoch: str = "e1",
        *tiers: Tier,
        groups: Sequence[Group] = (),
        profile: ContentProfile = PROFILE,
        start: bool = True,
        endpoint: str | None = None,
        partition: int = 0,
    ) -> Hook:
        """Registers a stream and opens it."""
        key = Signer.from_seed(sha256(f"{worker}/{rank}/{epoch}".encode()))
        number = self.order(
            Registered(
                worker=worker,
                rank=rank,
                epoch=epoch,
                engine_life=f"life-{epoch}",
                public_key=key.public_key,
                partition=partition,
                endpoint=endpoint or f"http://{worker}",
            ),
            Role.ENROLMENT,
        )
        first_prev = self.registry.registrations[self.registry.current[worker, rank]].record_sha256
        builder = StreamBuilder(
            worker,
            rank,
            epoch,
            number,
            first_prev,
            control=ControlPosition(offset=number, hash=self.registry.hash),
        )
        hook = Hook(self, builder, key)
        if start:
            hook.open(*tiers, groups=groups, profile=profile)
        return hook

    def deliver(self, value: bytes) -> Any:
        self._events += 1
        return self.view.apply_record(0, self._events - 1, value, self.now_ns)

    def beacon(self, *, reader: str = "reader", deliver: bool = True) -> Echo:
        """A reader begins a beacon now and it is in the log at once."""
        self._nonces += 1
        nonce = self._nonces.to_bytes(16, "big")
        if reader == "reader":
            self.view.book.began(nonce, self.now_ns)
        value = dump(Beacon(reader=reader, nonce=nonce))
        offset = self._signals
        self._signals += 1
        self.newest = Echo(offset=offset, nonce=nonce)
        if deliver:
            self.view.apply_signal(offset, value, self.now_ns)
        return self.newest

    def round(self, *hooks: Hook) -> None:
        """A beacon, and each hook's confirmed echo of it."""
        self.beacon()
        for hook in hooks:
            hook.pulse()

    def wait(self, ms: float) -> None:
        self.now_ns += round(ms * MS)

    def ask(self, ids: Sequence[bytes] | None = None, **fields: Any) -> Answer | Problem:
        """A lookup of ids, or of `token_ids`; 1 s of bound unless told otherwise."""
        domain = fields.pop("domain", DOMAIN)
        if "max_staleness_ms" not in fields and "consistency" not in fields:
            fields["max_staleness_ms"] = 1_000
        if ids is not None:
            fields["block_ids"] = [block.hex() for block in ids]
        fields.setdefault("profile", profile_digest(PROFILE))
        request = LookupRequest.model_validate(fields, strict=False)
        query = make_query(request, domain)
        if isinstance(query, Problem):
            return query
        return answer(self.view, query, self.now_ns, 1_700_000_000_000)

    def get(self, ids: Sequence[bytes] | None = None, **fields: Any) -> Answer:
        found = self.ask(ids, **fields)
        assert isinstance(found, Answer), found
        return found

    def refused(self, ids: Sequence[bytes] | None = None, **fields: Any) -> Problem:
        found = self.ask(ids, **fields)
        assert isinstance(found, Problem), found
        return found


def reasons(found: Answer) -> dict[str, str]:
    """worker -> why it was left out."""
    return {excluded.worker: excluded.reason.value for excluded in found.excluded}


def lengths(found: Answer) -> dict[str, int]:
    """worker -> matched blocks."""
    return {match.worker: match.matched_blocks for match in found.matches}
