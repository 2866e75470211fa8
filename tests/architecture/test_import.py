"""What the import-linter contracts cannot say: indirect imports of the auditor, clocks in pure modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("events", "router_client", "indexer", "auditor", "migrations", "kvledger")

# No clock, no chance, no wire, no disk: what these modules answer follows from what they are given.
FORBIDDEN_IN_PURE = {
    "aiokafka",
    "asyncio",
    "asyncpg",
    "faust",
    "httpx",
    "logging",
    "os",
    "random",
    "secrets",
    "socket",
    "sqlalchemy",
    "starlette",
    "time",
}
ADAPTERS = ("events/hooks/", "events/kafka/")
PURE_ELSEWHERE = (
    "events/hooks/engine_event.py",
    "events/hooks/engine_position.py",
    "events/hooks/engine_recovery.py",
    "events/hooks/engine_wire.py",
    "events/hooks/lmcache.py",
    "events/hooks/sglang.py",
    "events/hooks/stream.py",
    "events/hooks/vllm.py",
    "router_client/answer.py",
    "router_client/breaker.py",
    "router_client/index.py",
    "router_client/prefix_memory.py",
    "router_client/problem.py",
    "router_client/query.py",
    "router_client/question.py",
    "router_client/reach.py",
    "router_client/standing.py",
    "router_client/stream_view.py",
    "router_client/view.py",
    "router_client/wire.py",
    "auditor/anchoring.py",
    "auditor/checkpoint.py",
    "auditor/ending.py",
    "auditor/main_log.py",
    "auditor/paper/element.py",
    "auditor/paper/html.py",
    "auditor/paper/ledger.py",
    "auditor/paper/register.py",
    "auditor/paper/sheet.py",
    "auditor/paper/wording.py",
    "auditor/report/judgement.py",
    "auditor/report/predicate.py",
    "auditor/report/register.py",
    "auditor/report/statement.py",
    "auditor/report/verify.py",
    "auditor/report/writer.py",
    "auditor/segment.py",
    "auditor/statement.py",
    "auditor/tree.py",
    "auditor/verdict.py",
    "auditor/verify.py",
    "auditor/witness.py",
)


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None, exclude_type_checking_imports=True)


def test_the_auditor_reaches_only_the_log_and_the_tables(graph: grimp.ImportGraph) -> None:
    reached = graph.find_upstream_modules("auditor", as_package=True)
    foreign = {
        module
        for module in reached
        if not module.startswith(("events", "auditor."))
        and module not in {"auditor", "indexer", "indexer.tables"}
    }
    assert foreign == set()
    assert {module for module in reached if module.startswith("events.fold")} == set()


def test_migrations_reach_only_tables(graph: grimp.ImportGraph) -> None:
    reached = graph.find_upstream_modules("migrations", as_package=True)
    ours = {module for module in reached if module.startswith(("indexer.", "auditor.", "router_client"))}
    assert ours <= {"indexer.tables", "auditor.tables"}


def pure_modules() -> Iterator[Path]:
    for path in sorted((ROOT / "events").rglob("*.py")):
        if not path.relative_to(ROOT).as_posix().startswith(ADAPTERS):
            yield path
    for name in PURE_ELSEWHERE:
        if (ROOT / name).is_file():
            yield ROOT / name


def imported_roots(path: Path) -> set[str]:
    roots: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            roots.add(node.module.partition(".")[0])
    return roots


@pytest.mark.parametrize("path", list(pure_modules()), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_pure_module_imports_no_clock_chance_or_wire(path: Path) -> None:
    assert imported_roots(path) & FORBIDDEN_IN_PURE == set()


@pytest.mark.parametrize(
    "path",
    [path for package in PACKAGES for path in sorted((ROOT / package).rglob("__init__.py"))],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_a_package_file_is_a_docstring_only(path: Path) -> None:
    body = ast.parse(path.read_text()).body
    assert len(body) <= 1
    assert all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body)


def test_only_the_control_writer_makes_control_records() -> None:
    """It asks whether the key may say them."""
    makers = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "encode_control" in path.read_text()
    }
    assert makers == {"events/codec.py", "events/kafka/control.py"}
