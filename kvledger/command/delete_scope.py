"""What `kvledger delete` is asked to reach, of its options. A scope that only the log can tell is named here, and found
by whoever reads it: a subject's leaves in `kv.subjects`, a model's profiles by the lookup service."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvledger.failure import CommandError, ExitCode, plain

if TYPE_CHECKING:
    from events.model.control import Scope


@dataclass(frozen=True, slots=True)
class SubjectGiven:
    """A subject by its name, to the letter as it was bound, or by its pseudonym."""

    domain: str
    subject: str


@dataclass(frozen=True, slots=True)
class ModelGiven:
    """Every profile that a worker has declared of a model, of one revision or of one adapter of it."""

    model: str
    revision: str | None
    adapter: str | None

    def body(self) -> dict[str, str]:
        """The scope as `POST /v1/deletions` takes it."""
        named = {"model": self.model, "revision": self.revision, "adapter": self.adapter}
        return {"type": "model", **{name: value for name, value in named.items() if value is not None}}


OF_A_DOMAIN = ("--subject", "--prefix-file", "--ids-file")
ALONE = ("--tenant", "--profile", "--model")


@dataclass(frozen=True, slots=True)
class ScopeOptions:
    """The options as they were given."""

    tenant: str | None
    domain: str | None
    subject: str | None
    prefix_file: Path | None
    ids_file: Path | None
    profile: str | None
    model: str | None
    revision: str | None
    adapter: str | None

    def scope(self) -> Scope | SubjectGiven | ModelGiven:
        """What they name. Raises CommandError for options that don't go together or hold no such thing."""
        self._check_together()
        from pydantic import ValidationError

        from events.model.control import DomainScope, IdsScope, PrefixScope, ProfileScope, TenantScope
        from events.subject import subject_name

        try:
            if self.tenant is not None:
                return TenantScope(tenant=self.tenant)
            if self.profile is not None:
                return ProfileScope(profile=_digest(self.profile))
            if self.model is not None:
                return ModelGiven(self.model, self.revision, self.adapter)
            whole = DomainScope(domain=self.domain or "")
            if self.subject is not None:
                return SubjectGiven(whole.domain, subject_name(self.subject))
            if self.prefix_file is not None:
                return PrefixScope(domain=whole.domain, ids=read_ids(self.prefix_file))
            if self.ids_file is not None:
                return IdsScope(domain=whole.domain, ids=read_ids(self.ids_file))
            return whole
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            what = ".".join(str(part) for part in first["loc"]) or "subject"
            raise usage(f"--{what}: {plain(first['msg'])}") from error

    def _check_together(self) -> None:
        options = {
            "--tenant": self.tenant,
            "--subject": self.subject,
            "--prefix-file": self.prefix_file,
            "--ids-file": self.ids_file,
            "--profile": self.profile,
            "--model": self.model,
        }
        given = [name for name, value in options.items() if value is not None]
        if len(given) > 1:
            raise usage(f"{' and '.join(given)} can't be combined")
        if self.domain is not None and given and given[0] in ALONE:
            raise usage(f"--domain and {given[0]} can't be combined")
        if self.domain is None and (not given or given[0] in OF_A_DOMAIN):
            raise usage(
                "name what to delete: --tenant, --domain (and --subject, --prefix-file or --ids-file), --profile "
                "or --model"
            )
        if self.model is None and (self.revision is not None or self.adapter is not None):
            raise usage("--revision and --adapter go with --model")


def read_ids(path: Path, command: str = "delete") -> tuple[bytes, ...]:
    """Block ids of a file, in hex, one a line. Raises CommandError naming the line, and the command's help."""
    ids: list[bytes] = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"{path} can't be read", command) from error
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        try:
            block = bytes.fromhex(text)
        except ValueError:
            block = b""
        if len(block) != 16:
            raise usage(f"{path}, line {number}: a block id is 32 hexadecimal characters", command)
        ids.append(block)
    if not ids:
        raise usage(f"{path} holds no block id", command)
    return tuple(ids)


def usage(message: str, command: str = "delete") -> CommandError:
    """Wrong use of a command, which names its help."""
    return CommandError(message, advice=f"kvledger {command} --help", exit_code=ExitCode.USAGE)


def _digest(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise usage("--profile takes 64 hexadecimal characters") from error
