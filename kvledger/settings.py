"""The local stack's settings: defaults, then `kvledger.toml`, then `KVLEDGER_*`, then the caller.

Other processes have settings of their own; they share the prefix and the file, so a name that is
unknown here is not an error here. `kvledger config check` looks at all of them together.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from kvledger.failure import CommandError, ExitCode, plain

ENV_PREFIX = "KVLEDGER_"
CONFIG_VARIABLE = "KVLEDGER_CONFIG"
CONFIG_NAME = "kvledger.toml"

Port = Annotated[int, Field(ge=0, le=65535)]


class ConfigurationError(CommandError):
    """A setting cannot be used; the message names the setting and where it was read."""

    def __init__(self, message: str, *, advice: str = "run `kvledger config check`") -> None:
        super().__init__(message, advice=advice, exit_code=ExitCode.CONFIGURATION)


def config_path() -> Path:
    """The TOML file in force: what `KVLEDGER_CONFIG` names, else `kvledger.toml` here."""
    return Path(os.environ.get(CONFIG_VARIABLE, CONFIG_NAME))


class Settings(BaseSettings):
    """Everything the local stack can be told. A port of 0 means any free port."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    home: Path = Field(default=Path(".kvledger"), description="folder of all local state")
    cache_dir: Path | None = Field(default=None, description="folder of fetched archives")
    kafka: str | None = Field(default=None, description="bootstrap host:port of a Kafka to use")
    database_url: SecretStr | None = Field(default=None, description="postgresql:// URL of a database to use")
    kafka_port: Port = 19092
    kafka_controller_port: Port = 19093
    postgres_port: Port = 15432
    lookup_port: Port = 8400
    audit_index: bool = Field(
        default=False, description="`kvledger up` also runs `kvledger audit index --follow`"
    )
    audit_port: Port = Field(default=0, description="of that process's /metrics")
    topic_prefix: str = Field(
        default="", description="put before every topic's name: several logs on one Kafka"
    )
    partitions: Annotated[int, Field(gt=0, le=4096)] = Field(
        default=8, description="partitions of kv.events and kv.pulse, fixed for the life of a log"
    )
    replication: Annotated[int, Field(gt=0, le=16)] = Field(default=1, description="replicas of each topic")
    indexer_instance: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,200}$",
        description="name of an indexer that keeps its partitions over a restart; no two may share one",
    )
    reset_share: Annotated[int, Field(gt=0, le=10_000)] = Field(
        default=8,
        description="one in so many of a model's engines is emptied at once, where nothing finer is",
    )
    resets_per_hour: Annotated[int, Field(gt=0, le=3_600)] = Field(
        default=6, description="resets that a tenant's deletions may cause in one engine"
    )
    tsa_url: str | None = Field(
        default=None, pattern=r"^https?://\S+$", description="RFC 3161 authority that time-stamps checkpoints"
    )
    tsa_certificate: Path | None = Field(
        default=None, description="PEM file of the certificates that vouch for the time-stamping authority"
    )
    kafka_heap_mb: Annotated[int, Field(ge=128)] = 512
    java: Path | None = Field(default=None, description="java program (17 or newer) to run Kafka with")
    postgres_fsync: bool = Field(default=True, description="false risks data at a power cut, not at kill -9")
    fetch_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    start_timeout_s: Annotated[float, Field(gt=0)] = 90.0
    stop_timeout_s: Annotated[float, Field(gt=0)] = 20.0

    @field_validator("tsa_url", "tsa_certificate", mode="before")
    @classmethod
    def _empty_means_none(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("kafka", "database_url", "cache_dir", "java", "indexer_instance", mode="before")
    @classmethod
    def _empty_means_unset(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("kafka")
    @classmethod
    def _is_bootstrap(cls, value: str | None) -> str | None:
        for address in (value or "").split(",") if value else ():
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f"{address.strip()!r} is not host:port")
        return value

    @field_validator("database_url")
    @classmethod
    def _is_postgres(cls, value: SecretStr | None) -> SecretStr | None:
        if value and not value.get_secret_value().startswith(("postgresql://", "postgres://")):
            raise ValueError("is not a postgresql:// URL")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, config_path())


def load_settings(**overrides: object) -> Settings:
    """The settings in force, with the addresses of the local stack where none are set and one runs.

    Raises `ConfigurationError` naming the bad setting.
    """
    from kvledger.stack.state import Home

    settings = configured_settings(**overrides)
    state = Home(settings.home).read_state()
    if state is None or not state.supervisor.is_alive():
        return settings
    at = state.endpoints
    return settings.model_copy(
        update={
            "kafka": settings.kafka or at.kafka or None,
            "database_url": settings.database_url
            or (SecretStr(at.database_url) if at.database_url else None),
            "lookup_port": at.lookup_port or settings.lookup_port,
        }
    )


def configured_settings(**overrides: object) -> Settings:
    """The settings as configured, whatever runs; `home` made absolute.

    Raises `ConfigurationError` naming the bad setting.
    """
    path = config_path()
    if CONFIG_VARIABLE in os.environ and not path.is_file():
        raise ConfigurationError(f"{CONFIG_VARIABLE} names {path}, which is no file")
    try:
        settings = Settings.model_validate(Settings(**overrides).model_dump())  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{where(name, path)}: {plain(first['msg'])}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    return settings.model_copy(update={"home": settings.home.expanduser().absolute()})


def where(name: str, path: Path, environment: Mapping[str, str] | None = None) -> str:
    """Names the place a setting was read from: the variable if it is set, else the file's key."""
    variable = ENV_PREFIX + name.upper()
    environment = os.environ if environment is None else environment
    return variable if variable in environment else f"{path}: {name}"
