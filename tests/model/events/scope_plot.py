"""Small stories of one worker, each with the truth beside every record, as sealed bytes of both topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from events.chain import MODULUS, sha256
from events.codec import dump
from events.fold.registry import Registry
from events.identity import profile_digest
from events.ids import Basis, Role, StreamKey
from events.keyring import KeyRing
from events.model.batch import ControlPosition
from events.model.control import ControlBody, DomainCreated, Registered
from events.model.part import BlockStored, DomainEvent, ProfileDeclared, StreamEvent
from events.model.signal import Beacon, Echo, Pulse, RankPulse
from events.signing import Signer, verify
from tests.support.log import PROFILE, ControlLog, StreamBuilder

DOMAIN = "default"
RING = KeyRing({DOMAIN: b"d" * 32})
SECOND_NS = 1_000_000_000

Held = Mapping[str, frozenset[bytes]]
"""Blocks by holder."""


def holding(**blocks: Sequence[bytes]) -> Held:
    return {holder: frozenset(ids) for holder, ids in blocks.items()}


@dataclass(frozen=True)
class Step:
    """One record. `truth`: what the rank holds from here on; `certain`: what may be known of it, the same
    unless told; `ages`: provenance by (holder, block), where it matters."""

    stream_events: tuple[StreamEvent, ...] = ()
    events: tuple[DomainEvent, ...] = ()
    truth: Held = field(default_factory=dict)
    certain: Held | None = None
    ages: Mapping[tuple[str, bytes], int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Opening:
    """Registers an epoch of a rank; the steps that follow under its name are its stream."""

    epoch: str
    life: str = "life-1"
    rank: int = 0
    keeps_memory: bool = False
    """The engine lives on: what the rank holds stays."""


@dataclass(frozen=True)
class Told:
    """A step of one epoch's stream."""

    epoch: str
    step: Step


Scene = Opening | Told | ControlBody


@dataclass(frozen=True)
class Plot:
    """Scenes in the order in which they happen. `twins`: every record may also come from a second process of
    the same identity."""

    name: str
    chains: tuple[tuple[bytes, ...], ...]
    scenes: tuple[Scene, ...]
    twins: bool = False


@dataclass(frozen=True)
class Sealed:
    """A record as it is sent; `twin`: another process' record under the same number; `garbled`: its header
    alone can be read."""

    value: bytes
    twin: bytes
    garbled: bytes
    time_ns: int
    step: Step


@dataclass
class Script:
    """A plot in bytes. `truth[rank]`: (instant, what is held from then on), in order of time."""

    plot: Plot
    base: list[tuple[bytes, bytes | None]]
    control: list[tuple[bytes, bytes | None, int]] = field(default_factory=list)
    standing: list[frozenset[str]] = field(default_factory=lambda: [frozenset()])
    """Epochs that still count, after so many records of control."""
    streams: dict[str, list[Sealed]] = field(default_factory=dict)
    keys: dict[str, StreamKey] = field(default_factory=dict)
    truth: dict[int, list[tuple[int, Held]]] = field(default_factory=dict)
    beacons: list[tuple[int, bytes]] = field(default_factory=list)
    pulses: list[bytes] = field(default_factory=list)
    end_ns: int = 0

    def possible(self, rank: int, since_ns: int) -> list[Held]:
        """Everything that the rank held at some instant from `since_ns` on."""
        story = self.truth.get(rank, [])
        known = [held for at, held in story if at <= since_ns]
        return known[-1:] + [held for at, held in story if at > since_ns]


def write(plot: Plot) -> Script:
    """Seals a plot: registrations and epoch numbers, chains of hashes, a confirmed pulse behind every record."""
    log = ControlLog()
    log.append(DomainCreated(domain=DOMAIN, tenant=DOMAIN), Role.CONTROL)
    registry = Registry(verify)
    script = Script(plot, list(log.records))
    for offset, record in enumerate(log.records):
        registry.fold(offset, *record)
    builders: dict[str, StreamBuilder] = {}
    now_ns = SECOND_NS
    for scene in plot.scenes:
        now_ns += SECOND_NS
        if isinstance(scene, Told):
            _tell(script, builders[scene.epoch], scene, now_ns)
            continue
        if isinstance(scene, Opening):
            body: ControlBody = Registered(
                worker="w0",
                rank=scene.rank,
                epoch=scene.epoch,
                engine_life=scene.life,
                public_key=Signer.from_seed(sha256(scene.epoch.encode())).public_key,
                partition=0,
            )
            number = log.append(body, Role.ENROLMENT)
            if not scene.keeps_memory:
                script.truth.setdefault(scene.rank, []).append((now_ns, {}))
        else:
            role = Role.SUPERVISOR if scene.kind == "exit_attested" else Role.CONTROL
            number = log.append(scene, role)
            if scene.kind == "exit_attested":
                for story in script.truth.values():
                    story.append((now_ns, {}))
        value, signature = log.records[number]
        registry.fold(number, value, signature)
        script.control.append((value, signature, now_ns))
        standing = script.standing[-1]
        if isinstance(scene, Opening):
            older = {epoch for epoch, key in script.keys.items() if key.rank == scene.rank}
            script.standing.append((standing - older) | {scene.epoch})
        else:
            script.standing.append(frozenset() if scene.kind == "exit_attested" else standing)
        if isinstance(scene, Opening):
            key = StreamKey("w0", scene.rank, scene.epoch)
            script.keys[scene.epoch], script.streams[scene.epoch] = key, []
            builders[scene.epoch] = StreamBuilder(
                "w0",
                scene.rank,
                scene.epoch,
                number,
                registry.registrations[key].record_sha256,
                control=ControlPosition(offset=number, hash=registry.hash),
            )
    script.end_ns = now_ns + SECOND_NS
    return script


def _tell(script: Script, builder: StreamBuilder, told: Told, now_ns: int) -> None:
    step = told.step
    parts: list[tuple[bytes, Sequence[DomainEvent]]] = []
    alias = RING[DOMAIN].alias(builder.worker, builder.rank, builder.epoch_no)
    if step.events:
        parts.append((alias, step.events))
    seq, prev = builder.seq, builder.prev
    other = StreamBuilder(
        builder.worker, builder.rank, builder.epoch, builder.epoch_no, prev, seq, builder.control
    )
    stranger: list[DomainEvent] = [
        BlockStored(holder="gpu", group=0, profile=0, ids=chain) for chain in script.plot.chains
    ]
    if seq == 0:
        stranger.insert(0, ProfileDeclared(profile=0, content=PROFILE, block_bytes=(100,)))
    opening = [event for event in step.stream_events if event.type == "opened"]
    twin = other.seal(*opening, parts=[(alias, stranger)]).value
    value = builder.seal(*step.stream_events, parts=parts).value
    garbled = value.split(b"\n")[0] + b"\n{"
    script.streams[told.epoch].append(Sealed(value, twin, garbled, now_ns, step))
    script.truth.setdefault(builder.rank, []).append((now_ns, step.truth))
    nonce = len(script.beacons).to_bytes(16, "big")
    script.beacons.append((now_ns + 1, dump(Beacon(reader="r", nonce=nonce))))
    rank = RankPulse(
        rank=builder.rank,
        epoch=builder.epoch,
        next_seq=builder.seq,
        prev=builder.prev,
        basis=Basis.PUBLISHED,
        echo=Echo(offset=len(script.beacons) - 1, nonce=nonce),
    )
    script.pulses.append(dump(Pulse(worker="w0", ranks=(rank,))))


def checksum(ids: Sequence[bytes]) -> bytes:
    return (sum(int.from_bytes(one, "big") for one in ids) % MODULUS).to_bytes(16, "big")


PROFILE_ID = profile_digest(PROFILE)
