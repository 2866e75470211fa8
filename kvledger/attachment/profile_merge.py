"""What a person configured and what the engine says, as one profile. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from events.model.profile import ContentProfile
from kvledger.engine_profile import EngineProfile
from kvledger.failure import CommandError, ExitCode, plain


class ProfileConflictError(CommandError):
    """A configured field is another than the engine's own word: the profile is of another engine."""

    def __init__(self, name: str, given: object, learned: object) -> None:
        super().__init__(
            f"the profile says {name} = {given!r}, the engine says {learned!r}",
            advice="correct the profile, or leave the field out of it",
            exit_code=ExitCode.CONFIGURATION,
        )
        self.field = name


def merge(learned: EngineProfile, given: EngineProfile) -> EngineProfile:
    """What is configured fills what couldn't be learned. Raises ProfileConflictError for a content field that
    is told otherwise; facts beside the identity are taken as configured."""
    content: dict[str, Any] = {}
    for name in ContentProfile.model_fields:
        told, set_to = getattr(learned.content, name), getattr(given.content, name)
        if set_to is not None and told is not None and set_to != told:
            raise ProfileConflictError(name, set_to, told)
        content[name] = set_to if told is None else told
    for name, revision in given.adapters.items():
        known = learned.adapters.get(name)
        if known is not None and known != revision:
            raise ProfileConflictError(f"adapters.{name}", revision, known)
    layout = {name: getattr(given.layout, name) for name in given.layout.model_fields_set}
    facts = {name: getattr(given.engine, name) for name in given.engine.model_fields_set}
    return EngineProfile(
        content=ContentProfile(**content),
        layout=learned.layout.model_copy(update=layout),
        adapters={**given.adapters, **learned.adapters},
        engine=learned.engine.model_copy(update=facts),
    )


def with_settings(given: EngineProfile, settings: Iterable[str]) -> EngineProfile:
    """`NAME=VALUE` of the content profile, put over a profile's own. Raises CommandError naming the setting."""
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name not in ContentProfile.model_fields or not value:
            known = ", ".join(ContentProfile.model_fields)
            raise CommandError(
                f"--set {setting!r} is no NAME=VALUE", advice=f"names: {known}", exit_code=ExitCode.USAGE
            )
        values[name] = value
    document: Mapping[str, Any] = {**given.content.model_dump(exclude_none=True), **values}
    try:
        content = ContentProfile.model_validate(document, strict=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise CommandError(f"--set {where}: {plain(first['msg'])}", exit_code=ExitCode.USAGE) from error
    return given.model_copy(update={"content": content})
