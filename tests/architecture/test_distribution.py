"""What is shipped: the wheel's top-level names, and what each extra brings along."""

from __future__ import annotations

import re
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGES = {"events", "router_client", "indexer", "auditor", "migrations", "kvledger"}
SERVERS = {"faust-streaming", "fastapi", "starlette", "uvicorn", "alembic", "sqlalchemy"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    path = next(iter(WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])))
    return zipfile.ZipFile(path)


def test_the_wheel_holds_our_six_names_and_no_other(wheel: zipfile.ZipFile) -> None:
    top = {name.partition("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == PACKAGES


@pytest.mark.parametrize("package", sorted(PACKAGES - {"migrations"}))
def test_the_wheel_says_that_it_is_typed(wheel: zipfile.ZipFile, package: str) -> None:
    assert f"{package}/py.typed" in wheel.namelist()


def test_the_wheel_holds_kafkas_sums(wheel: zipfile.ZipFile) -> None:
    assert "kvledger/stack/kafka.sha256" in wheel.namelist()


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def brought_along(extra: str) -> set[str]:
    """Every distribution that an install with this extra brings on this machine."""
    seen: set[tuple[str, str]] = set()
    todo = [("kvledger", extra)]
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            requirements = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        for requirement in map(Requirement, requirements):
            if requirement.marker is None or requirement.marker.evaluate({"extra": wanted}):
                found = canonical(requirement.name)
                todo += [(found, one) for one in ("", *requirement.extras)]
    return {name for name, _ in seen}


def test_a_routers_install_brings_no_server() -> None:
    assert brought_along("router") & SERVERS == set()


def test_a_hooks_install_brings_no_server() -> None:
    assert brought_along("hook") & SERVERS == set()


def test_an_auditors_install_brings_no_server_but_the_tables() -> None:
    assert brought_along("audit") & SERVERS == {"sqlalchemy"}


def test_a_servers_install_brings_all_of_it() -> None:
    assert brought_along("server") >= SERVERS


def test_the_lock_holds_names_versions_and_sums_only() -> None:
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        assert re.fullmatch(
            r"[a-z0-9_.\-\[\],]+==[^ ]+( ; [^\\]+)?( \\)?|    --hash=sha256:[0-9a-f]{64}( \\)?", line
        ), line
