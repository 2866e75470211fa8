"""What a pod proves of the engine in it, and what it doesn't."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from events.fold.registry import Registry
from events.ids import Role
from events.model.control import ExitAttested, Registered
from events.signing import verify
from kvledger.attesting import end_of, ended_lives
from tests.support.fake_cluster import pod, terminated
from tests.support.log import ControlLog


def over(container_id: str = "containerd://a", **more: Any) -> dict[str, Any]:
    one = pod("vllm-0", "uid-0", container_id=container_id)
    one["status"]["containerStatuses"][0]["state"] = terminated(container_id)
    one["status"].update(more)
    return one


def test_a_start_of_the_container_that_terminated_is_over_and_no_other() -> None:
    restarted = pod("vllm-0", "uid-0", container_id="containerd://b")
    restarted["status"]["containerStatuses"][0]["lastState"] = terminated("containerd://a")
    evidence = end_of(restarted, "engine", "containerd://a")
    assert evidence is not None
    assert all(
        part in evidence for part in ("llm/vllm-0", "uid-0", "node-1", "containerd://a", "137", "OOMKilled")
    )
    assert end_of(restarted, "engine", "containerd://b") is None
    assert end_of(restarted, "other", "containerd://a") is None
    assert end_of(restarted, "engine", None) is None, "which start was registered can't be told"


def test_without_a_containers_id_the_pod_itself_must_be_over() -> None:
    waiting = over()
    assert end_of(waiting, "engine", None) is None, "it may be started again"
    assert end_of(over(phase="Failed"), "engine", None) is not None
    assert end_of(over(phase="Failed"), None, None) is not None
    deleted = over()
    deleted["metadata"]["deletionTimestamp"] = "2026-11-30T09:00:00Z"
    assert end_of(deleted, "engine", None) is not None
    assert end_of(over(phase="Failed"), "other", None) is None


@pytest.mark.parametrize(
    "one",
    [
        pod("p", "u", phase="Failed"),
        {"metadata": {"uid": "u", "deletionTimestamp": "now"}, "status": {"phase": "Failed"}},
        {"metadata": {"uid": "u"}, "status": {"phase": "Failed", "containerStatuses": []}},
        {"metadata": None, "status": None},
        {},
    ],
)
def test_a_pod_without_a_terminated_status_proves_nothing(one: dict[str, Any]) -> None:
    for container in (None, "engine"):
        assert end_of(one, container, None) is None
        assert end_of(one, container, "containerd://a") is None


def test_a_container_that_kubelet_could_not_find_is_no_death() -> None:
    lost = over(phase="Failed")
    lost["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "ContainerStatusUnknown"
    assert end_of(lost, "engine", None) is None
    assert end_of(lost, "engine", "containerd://a") is None


def test_two_containers_are_over_together() -> None:
    both = over(phase="Failed")
    second = deepcopy(both["status"]["containerStatuses"][0]) | {"name": "sidecar", "state": {"running": {}}}
    both["status"]["containerStatuses"].append(second)
    assert end_of(both, None, None) is None
    assert end_of(both, "engine", None) is not None


def registered(control: ControlLog, worker: str, life: str, epoch: str = "e1", **place: Any) -> None:
    body = Registered(
        worker=worker, rank=0, epoch=epoch, engine_life=life, public_key=bytes(32), partition=0, **place
    )
    control.append(body, Role.ENROLMENT)


def folded(control: ControlLog) -> Registry:
    registry = Registry(verify)
    for offset, (value, signature) in enumerate(control.records):
        registry.fold(offset, value, signature)
    return registry


def test_lives_are_matched_by_their_pod_and_attested_once() -> None:
    control = ControlLog()
    registered(control, "w0", "life-0", pod="uid-0", container="engine", container_id="containerd://a")
    registered(control, "w1", "life-1", pod="uid-1", container="engine")
    registered(control, "w2", "life-2")
    registered(control, "w3", "life-3", "e1", pod="uid-0", container_id="containerd://a")
    registered(control, "w3", "life-3", "e2", pod="uid-0", container_id="containerd://b")
    pods = {"uid-0": over(), "uid-1": pod("vllm-1", "uid-1")}
    ends = ended_lives(folded(control), pods)
    assert [(end.worker, end.engine_life) for end in ends] == [("w0", "life-0")]
    body = ExitAttested(worker="w0", engine_life="life-0", attester="kubernetes", evidence=ends[0].evidence)
    control.append(body, Role.SUPERVISOR)
    assert not ended_lives(folded(control), pods)


@pytest.mark.parametrize("where", ["metadata", "status", "spec"])
@pytest.mark.parametrize("what", [[], "x", 7, [1], {"containerStatuses": 3}, {"containerStatuses": ["x"]}])
def test_a_pod_that_is_not_of_the_apis_form_proves_nothing(where: str, what: object) -> None:
    pod = {"metadata": {"uid": "u", "deletionTimestamp": "now"}, "status": {"phase": "Failed"}} | {
        where: what
    }
    for container_id in (None, "containerd://1"):
        assert end_of(pod, None, container_id) is None
