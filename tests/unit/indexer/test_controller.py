from __future__ import annotations

from events.fold.quota import counts
from events.fold.registry import Registry
from events.ids import Role, StreamKey
from events.model.control import ExitAttested, Fenced
from events.signing import verify
from indexer.controller import ended
from tests.support.log import ControlLog


def registry_of(control: ControlLog) -> Registry:
    registry = Registry(verify)
    for offset, (value, signature) in enumerate(control.records):
        registry.fold(offset, value, signature)
    return registry


def attest(control: ControlLog, worker: str, life: str) -> None:
    body = ExitAttested(worker=worker, engine_life=life, attester="supervisor", evidence="exit code 0")
    control.append(body, Role.SUPERVISOR)


def test_attested_end_of_an_engine_is_fenced_once() -> None:
    control = ControlLog()
    for worker in ("w0", "w1"):
        control.register(worker, life=f"life of {worker}".replace(" ", "-"))
    attest(control, "w0", "life-of-w0")
    registry = registry_of(control)
    dead = StreamKey("w0", 0, "e1")
    assert ended(registry, registry.current.values()) == {dead}
    control.append(Fenced(worker="w0", rank=0, epoch="e1", evidence="operator"), Role.CONTROL)
    registry = registry_of(control)
    assert not ended(registry, set(registry.current.values()) - set(registry.fenced))


def test_epoch_that_contradicts_the_attestation_is_left_to_silence() -> None:
    control = ControlLog()
    control.register("w0", life="life-1")
    attest(control, "w0", "life-1")
    control.append(Fenced(worker="w0", rank=0, epoch="e1", evidence="operator"), Role.CONTROL)
    control.register("w0", epoch="e2", life="life-1")
    registry = registry_of(control)
    assert not ended(registry, registry.current.values())


def test_usage_falls_with_its_epoch_and_with_the_end_of_its_engine() -> None:
    control = ControlLog()
    control.register("w0", epoch="e1")
    control.register("w0", epoch="e2")
    control.register("w1", life="life-9")
    attest(control, "w1", "life-9")
    registry = registry_of(control)
    answers = {
        StreamKey("w0", 0, "e1"): False,
        StreamKey("w0", 0, "e2"): True,
        StreamKey("w1", 0, "e1"): False,
        StreamKey("unregistered", 0, "e1"): True,
    }
    assert {stream: counts(registry, stream) for stream in answers} == answers
