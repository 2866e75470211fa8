"""Where an engine runs, as the environment of its hook says."""

from __future__ import annotations

from events.hooks.registration import EnginePlace


def test_the_environment_names_the_pod_and_the_container() -> None:
    told = {
        "KVLEDGER_POD_UID": "0b6a4a3c-1f4e-4f0b-8d3a-000000000001",
        "KVLEDGER_CONTAINER": "vllm",
        "KVLEDGER_CONTAINER_ID": "containerd://4f2a",
    }
    assert EnginePlace.told(told) == EnginePlace(told["KVLEDGER_POD_UID"], "vllm", "containerd://4f2a")


def test_what_can_be_no_name_and_what_is_not_set_is_left_out() -> None:
    assert EnginePlace.told({}) == EnginePlace()
    assert EnginePlace.told({"KVLEDGER_POD_UID": "two words", "KVLEDGER_CONTAINER": ""}) == EnginePlace()
