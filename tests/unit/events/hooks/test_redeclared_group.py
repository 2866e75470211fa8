"""An engine's group may be another than its stream has declared: no record of that epoch can say so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from events.codec import decode_batch
from events.fold.apply import apply
from events.fold.registry import Registry
from events.fold.state import StreamState
from events.hooks.emitter import Emitter
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import EngineBatch, EngineTier
from events.hooks.engine_port import EnginePort
from events.hooks.engine_stream import EngineStream
from events.hooks.hook import Hook, HookIdentity, HookServices
from events.hooks.reporting import EpochRegistrar
from events.hooks.reset_turn import ResetTurns
from events.hooks.stream import Epoch, SealedRecord
from events.ids import GroupKind, StreamKey, StreamStatus
from events.model.part import Group
from events.signing import Signer, verify
from tests.support.folded_stream import CONTENT, RING, FoldedStream
from tests.unit.events.hooks.test_engine_stream import SIZE, ids, stored

SLIDING: dict[str, Any] = {"spec_kind": "sliding_window", "window": 2 * SIZE}
DECLARED = {
    "of another block size": Group(index=0, kind=GroupKind.FULL, block_tokens=4 * SIZE),
    "of another kind": Group(index=0, kind=GroupKind.SLIDING_WINDOW, block_tokens=SIZE, window=SIZE),
    "of another window": Group(index=0, kind=GroupKind.SLIDING_WINDOW, block_tokens=SIZE, window=4 * SIZE),
}


@pytest.mark.parametrize("what", DECLARED)
def test_a_group_declared_otherwise_begins_another_epoch_and_stays_credited(what: str) -> None:
    kind: dict[str, Any] = {"spec_kind": "full_attention"} if what == "of another kind" else SLIDING
    folded = FoldedStream(EngineConfig(content=CONTENT, groups=(DECLARED[what],)))
    assert folded.events(stored(1, 2, **kind)).epoch_due
    assert folded.state.epoch_no == 2
    assert folded.state.holders["gpu"].groups[0].block_tokens == SIZE
    assert folded.credited() == set(ids(1, 2))
    assert not folded.events(stored(3, parent=2, **kind)).epoch_due
    assert len(folded.credited()) == 3


def test_a_group_that_turns_up_later_stays_in_its_epoch() -> None:
    content = CONTENT.model_copy(update={"block_tokens": SIZE})
    folded = FoldedStream(EngineConfig(content=content, connectors=("OffloadingConnector",)))
    folded.events(stored(1))
    assert not folded.events(stored(1, group=1)).epoch_due
    assert not folded.events(stored(1, tier=EngineTier.CPU)).epoch_due
    assert folded.state.epoch_no == 1
    assert folded.events(stored(1, group=1, **SLIDING)).epoch_due
    assert folded.credited(group=1) == folded.credited(holder="cpu") == set(ids(1))


class KeptRecords(Emitter):
    """Keeps what is offered."""

    def __init__(self) -> None:
        self.records: list[SealedRecord] = []

    def offer(self, record: SealedRecord) -> bool:
        self.records.append(record)
        return True


async def test_a_hook_registers_again_and_restates_instead_of_writing_an_illegal_record() -> None:
    emitter = KeptRecords()
    registry = Registry(verify)
    services = HookServices(
        emitter=emitter,
        registrar=cast(EpochRegistrar, None),
        registry=registry,
        keyring=RING,
        monotonic_s=lambda: 0.0,
        snapshot_name=lambda: "s1",
        turns=ResetTurns(registry, lambda _: None, lambda: 0.0),
    )
    port = cast(EnginePort, SimpleNamespace(admission_known=False))
    translator = EngineStream("w0", 0, RING, EngineConfig(content=CONTENT))
    hook = Hook(HookIdentity("w0"), "life-1", port, translator, services)
    states: list[StreamState] = []
    for number in (1, 2):
        epoch = Epoch(
            StreamKey("w0", 0, f"e{number}"), number, bytes(32), 0, "life-1", Signer.from_seed(bytes(32))
        )
        states.append(StreamState(epoch.stream, number))
        assert hook.open_epoch(epoch)
        if number == 1:
            hook.feed(EngineBatch(0, 0, None, (stored(1, 2),), bytes(32)))
            assert hook.stream is None
    assert hook.repair.pending
    for translation in hook.restatement():
        hook.write_translation(translation)
    for record in emitter.records:
        apply(states[record.stream.epoch == "e2"], decode_batch(record.value))
    assert [state.status for state in states] == [StreamStatus.LIVE] * 2
    assert set(states[1].copies["gpu", 0]) == set(ids(1, 2))
