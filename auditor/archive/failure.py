"""What can be wrong with an archive, each with a word that programs may look at."""

from __future__ import annotations

from events.errors import KvledgerError


class ArchiveError(KvledgerError):
    """An archive can't be used as it is. `reason`: archive_unavailable (it can't be reached or written),
    archive_missing (there is nothing of this log), archive_foreign (it is of another log), archive_garbled (it is
    no archive, or not of a version that is known), archive_unverified (a segment is not what was sealed)."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
