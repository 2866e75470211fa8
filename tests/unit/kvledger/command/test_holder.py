"""What `kvledger holder` refuses, and what it says of owners: on a registry folded from real records."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from events.fold.registry import Registry
from events.ids import CANARY_WORKER, Role, Tier
from events.model.control import ControlBody, Fenced, HolderDestroyed, HolderEnrolled
from events.signing import verify
from kvledger.cli import make_app
from kvledger.command.holder import refusal, rows_of
from kvledger.engine_profile import EngineFacts, ProfileFileError, load_profile, template
from kvledger.failure import CommandError, ExitCode
from tests.support.log import ControlLog

DISK = "w0-disk"


def folded(*bodies: tuple[ControlBody, Role]) -> Registry:
    """w0 is registered; then what is given."""
    log, registry = ControlLog(), Registry(verify)
    log.register("w0", 0, "e0", "life-1")
    for body, role in bodies:
        log.append(body, role)
    for offset, (value, signature) in enumerate(log.records):
        registry.fold(offset, value, signature)
    return registry


def enrolled(owner: str, durable_id: str = DISK) -> HolderEnrolled:
    return HolderEnrolled(durable_id=durable_id, tier=Tier.DISK, owner=owner)


OWNED = (enrolled("w0"), Role.ENROLMENT)
FENCE = (Fenced(worker="w0", rank=0, epoch="e0", evidence="operator"), Role.CONTROL)


def test_an_owner_that_stands_is_named_with_what_to_do() -> None:
    why = refusal(folded(OWNED), enrolled("w1"))
    assert why is not None
    assert all(part in why.message for part in (DISK, "w0", "owner_stands"))
    assert why.advice is not None
    assert "fence" in why.advice


def test_what_the_command_takes_the_registry_obeys_and_the_other_way_round() -> None:
    for before, owner in (((), "w0"), ((OWNED,), "w0"), ((OWNED,), "w1"), ((OWNED, FENCE), "w1")):
        good = refusal(folded(*before), enrolled(owner)) is None
        after = folded(*before, (enrolled(owner), Role.ENROLMENT))
        assert good == (after.durable_owners[DISK].owner == owner)


def test_a_destroyed_store_is_not_enrolled_again() -> None:
    why = refusal(
        folded(OWNED, (HolderDestroyed(durable_id=DISK, evidence="shredded"), Role.SUPERVISOR)),
        enrolled("w0"),
    )
    assert why is not None
    assert "destroyed" in why.message


def test_the_list_says_whether_an_owner_stands_is_gone_or_was_never_seen() -> None:
    other = (enrolled("w9", "store-1"), Role.ENROLMENT)
    states = {row["durable_id"]: row["owner_state"] for row in rows_of(folded(OWNED, other))}
    assert states == {DISK: "stands", "store-1": "never seen"}
    assert rows_of(folded(OWNED, FENCE))[0]["owner_state"] == "is gone"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("two words", "--tier", "disk", "--owner", "w0"), "durable_id"),
        (("d", "--tier", "gpu", "--owner", "w0"), "none of disk, remote"),
        (("d", "--tier", "disk", "--owner", CANARY_WORKER), "canary"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_reached(arguments: tuple[str, ...], said: str) -> None:
    error = CliRunner().invoke(make_app(), ["holder", "enrol", *arguments]).exception
    assert isinstance(error, CommandError)
    assert said in error.message
    assert error.exit_code == ExitCode.USAGE


def test_a_profile_names_a_disk_of_each_workers_own(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    text = template("m")
    file.write_text(text)
    assert load_profile(file).engine.durable_ids == {}
    file.write_text(text.replace("# disk =", "disk =").replace("# remote =", "remote ="))
    named = load_profile(file).engine.durable_ids_of("w3")
    assert named == {Tier.DISK: "w3-disk", Tier.REMOTE: "store-1"}


@pytest.mark.parametrize("line", ['gpu = "x"', 'disk = "{host}"', 'disk = ""', 'disk = "two words"'])
def test_a_store_that_cannot_be_named_so_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    file = tmp_path / "p.toml"
    file.write_text(f"[engine.durable_ids]\n{line}\n")
    with pytest.raises(ProfileFileError, match=r"engine\.durable_ids"):
        load_profile(file)


def test_a_store_whose_name_is_too_long_with_the_workers_is_refused() -> None:
    facts = EngineFacts.model_validate({"durable_ids": {"disk": "{worker}-{worker}"}}, strict=False)
    with pytest.raises(ProfileFileError, match="too long"):
        facts.durable_ids_of("w" * 150)
