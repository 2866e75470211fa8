"""What is wrong with the settings in force, over every process' settings class together."""

from __future__ import annotations

import importlib
import os
import tomllib
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_settings import BaseSettings

from kvledger.failure import plain
from kvledger.settings import CONFIG_VARIABLE, ENV_PREFIX, config_path, where

# Every class that reads KVLEDGER_*; a class is looked at where its module is installed.
_CLASSES = (("kvledger.settings", "Settings"), ("indexer.settings", "Settings"))
OUR_NAMES = ("events", "router_client", "indexer", "auditor", "migrations", "kvledger")
_DISTRIBUTION = "kvledger"


class Finding(BaseModel):
    """One thing that is wrong: `where` is a variable, a file and key, or an import name."""

    model_config = ConfigDict(frozen=True)

    where: str
    what: str


def findings() -> tuple[Finding, ...]:
    """Everything that is wrong, settings first; empty when all is well."""
    return (*_setting_findings(), *_import_findings())


def _setting_findings() -> Iterator[Finding]:
    path = config_path()
    if CONFIG_VARIABLE in os.environ and not path.is_file():
        yield Finding(where=CONFIG_VARIABLE, what=f"names {path}, which is no file")
    try:
        written = tomllib.loads(path.read_text()) if path.is_file() else {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        yield Finding(where=str(path), what=str(error))
        return
    classes = list(_installed_classes())
    known = {name for settings in classes for name in settings.model_fields}
    seen: set[Finding] = set()
    for settings in classes:
        for finding in _invalid(settings, path):
            if finding not in seen:
                seen.add(finding)
                yield finding
    for name in sorted(set(written) - known):
        yield Finding(where=f"{path}: {name}", what=_no_setting(name, known))
    for variable in sorted(os.environ):
        name = variable.removeprefix(ENV_PREFIX)
        if variable.startswith(ENV_PREFIX) and variable != CONFIG_VARIABLE and name.lower() not in known:
            what = _no_setting(name.lower(), known, lambda near: ENV_PREFIX + near.upper())
            yield Finding(where=variable, what=what)


def _no_setting(name: str, known: set[str], shown: Callable[[str], str] = str) -> str:
    near = get_close_matches(name, sorted(known), n=1)
    return f"is no setting; did you mean {shown(near[0])}?" if near else "is no setting"


def _invalid(settings: type[BaseSettings], path: Path) -> Iterator[Finding]:
    try:
        settings()
    except ValidationError as error:
        for problem in error.errors():
            name = ".".join(str(part) for part in problem["loc"])
            yield Finding(where=where(name, path), what=plain(problem["msg"]))


def _installed_classes() -> Iterator[type[BaseSettings]]:
    for module, name in _CLASSES:
        if find_spec(module) is not None:
            yield getattr(importlib.import_module(module), name)


def _import_findings() -> Iterator[Finding]:
    root = Path(__file__).parent.parent
    owners = packages_distributions()
    for name in OUR_NAMES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            yield Finding(where=f"import {name}", what="is not there; install kvledger again")
            continue
        if Path(spec.origin).parent.parent != root:
            yield Finding(where=f"import {name}", what=f"is another package's: {spec.origin}")
        others = sorted({owner for owner in owners.get(name, ()) if owner.lower() != _DISTRIBUTION})
        if others:
            yield Finding(
                where=f"import {name}",
                what=f"belongs to {', '.join(others)} too; uninstall that, then install kvledger again",
            )
    try:
        distribution(_DISTRIBUTION)
    except PackageNotFoundError:
        yield Finding(where="kvledger", what="is not installed, only found on the path")
