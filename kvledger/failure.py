"""What a command line failure looks like: one line, what to do, and a documented exit code.

KvledgerError
└── CommandError           anything a command reports instead of a traceback
    └── StackError …       the local stack's own (`kvledger.stack.failure`)
"""

from __future__ import annotations

from enum import IntEnum

from events.errors import KvledgerError


class ExitCode(IntEnum):
    """The exit codes of every `kvledger` command; `docs/cli.md` lists them for people. 0 to 4 are what audits give as
    verdicts: nothing that kept a command from judging is one of 2 to 4."""

    OK = 0
    FAILED = 1
    REFUTED = 1
    UNPROVABLE = 2
    PENDING = 3
    BUNDLE_INVALID = 4
    USAGE = 64
    UNAVAILABLE = 69
    CONFIGURATION = 78
    INTERRUPTED = 130


def plain(message: str) -> str:
    """A validator's message without what the library puts before it."""
    return message.removeprefix("Value error, ").removeprefix("Assertion failed, ")


class CommandError(KvledgerError):
    """A command could not do what it was asked; `advice` says what the person can do about it."""

    def __init__(self, message: str, *, advice: str = "", exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.exit_code = exit_code
