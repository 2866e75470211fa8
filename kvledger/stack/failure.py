"""Why the local stack did not do what was asked; every one says what to do next."""

from __future__ import annotations

from pathlib import Path

from kvledger.failure import CommandError, ExitCode


class StackError(CommandError):
    """Root of the local stack's failures."""


class PortTakenError(StackError):
    """A port that a service wants is in use; stop its holder or choose another port, then start again."""

    def __init__(self, port: int, *, service: str, setting: str, holder: str | None) -> None:
        super().__init__(
            f"port {port}, wanted by {service}, is taken by {holder or 'another process'}",
            advice=f"stop it, or choose another port with KVLEDGER_{setting.upper()} "
            f"(in kvledger.toml: {setting} = …); 0 means any free port",
            exit_code=ExitCode.UNAVAILABLE,
        )
        self.port = port
        self.service = service
        self.setting = setting
        self.holder = holder


class PortsTakenError(StackError):
    """Several ports are in use; each of `taken` says which, by whom and for what."""

    def __init__(self, taken: tuple[PortTakenError, ...]) -> None:
        names = ", ".join(f"KVLEDGER_{one.setting.upper()}" for one in taken)
        super().__init__(
            "; ".join(one.message for one in taken),
            advice=f"stop what holds them, or choose other ports with {names} "
            "(or the same names in kvledger.toml); 0 means any free port",
            exit_code=ExitCode.UNAVAILABLE,
        )
        self.taken = taken


class FetchError(StackError):
    """Kafka's archives could not be fetched or are not the expected ones."""

    def __init__(self, what: str, *, cause: str) -> None:
        super().__init__(
            f"could not fetch {what}: {cause}",
            advice="this is needed once: connect to a network (or set its proxy) and run the command again, "
            "or set KVLEDGER_KAFKA to a Kafka that already runs",
            exit_code=ExitCode.UNAVAILABLE,
        )
        self.what = what
        self.cause = cause


class DataVersionError(StackError):
    """A data folder was written by another version and is left untouched."""

    def __init__(self, folder: Path, *, found: str, wanted: str) -> None:
        super().__init__(
            f"{folder} holds data of {found}, this kvledger runs {wanted}",
            advice="`kvledger down --wipe` removes all local data, or set KVLEDGER_HOME to another folder",
            exit_code=ExitCode.CONFIGURATION,
        )
        self.folder = folder
        self.found = found
        self.wanted = wanted


class ServiceFailedError(StackError):
    """A service or a step of the start did not come up; its log says why."""

    def __init__(self, service: str, *, reason: str, log: Path | None = None, advice: str = "") -> None:
        super().__init__(
            f"{service} {reason}",
            advice=advice or (f"see {log}" if log else ""),
            exit_code=ExitCode.UNAVAILABLE,
        )
        self.service = service
        self.reason = reason
        self.log = log


class AlreadyRunningError(StackError):
    """Another supervisor holds this home; use it, or stop it first."""

    def __init__(self, home: Path, *, pid: int | None) -> None:
        super().__init__(
            f"a stack already runs in {home}" + (f" (process {pid})" if pid else ""),
            advice="see `kvledger status`; `kvledger down` stops it; KVLEDGER_HOME names another folder",
            exit_code=ExitCode.FAILED,
        )
        self.home = home
        self.pid = pid


class NotRunningError(StackError):
    """No stack runs in this home."""

    def __init__(self, home: Path) -> None:
        super().__init__(
            f"no stack runs in {home}", advice="`kvledger up` starts one", exit_code=ExitCode.UNAVAILABLE
        )
        self.home = home
