"""Becomes a service's program: own session, dies with its supervisor, not as root if told so.

Run as a script, before the program, so that nothing of it runs between fork and exec in a threaded
process: `launcher.py SUPERVISOR_PID DEATH_SIGNAL USER|- PROGRAM ARGUMENT…`. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE = 1


def main(arguments: list[str]) -> None:
    """Never returns: execs the program, or exits with 127 when it can't."""
    supervisor_pid, death_signal, user, *program = arguments
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a program would inherit that
    with suppress(PermissionError):  # already leads a session
        os.setsid()
    if user != "-":
        _become(user)
    if sys.platform == "linux":
        # After the change of user, which clears it.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != int(supervisor_pid):
        sys.exit("the supervisor is gone")
    try:
        os.execv(program[0], program)  # noqa: S606 - becoming the program is the point
    except OSError as error:
        sys.stderr.write(f"{program[0]}: {error.strerror}\n")
        sys.exit(127)


def _become(user: str) -> None:
    """Takes the user's ids but keeps the right to pass folders that only root may pass.

    PostgreSQL refuses user id 0; its program and data may lie below a folder closed to others, and
    opening that folder to everybody is not ours to do.
    """
    import pwd

    entry = pwd.getpwnam(user)
    library = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if library is not None:
        library.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    if library is not None:
        bit = 1 << _CAP_DAC_OVERRIDE
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        # effective, permitted, inheritable of the low 32 capabilities, then of the high ones
        data = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
        if library.capset(header, data) == 0:
            library.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
