"""Compares the index in PostgreSQL with the auditor's own replay of the log, at one position, once or for ever.

A round reads the log up to where the index stands, then opens one repeatable-read snapshot, reads the few records
up to the positions in that, and compares. The next round goes on from there: it costs what was written since, and
the rows that it compares again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from auditor import row_sql
from auditor.archive.log_archive import LogArchive
from auditor.index_comparison import IndexComparison, Round
from auditor.index_replay import IndexReplay
from auditor.index_snapshot import UNAVAILABLE, IndexUnavailableError, connect, look
from auditor.row_column import Names
from events.errors import KvledgerError
from events.kafka.connection import KafkaConnection, LogUnavailableError
from events.signing import Verify

ANEW = 3
"""How often a round is begun anew because the log or the index changed under it."""


class UnsettledError(KvledgerError):
    """The log was cut, or the index made anew, again and again while it was compared: audit again."""


class IndexAudit:
    """`open` it, then one `round` after another; `close` it. `names` tells domains from aliases, as far as keys are
    here; `only` limits it to some partitions of kv.events, which bounds its memory to their copies. `archive` gives a
    log's archive, where what Kafka has dropped is read.
    """

    def __init__(
        self,
        dsn: str,
        connection: KafkaConnection,
        verify: Verify,
        *,
        monotonic_s: Callable[[], float],
        names: Names | None = None,
        only: Iterable[int] = (),
        archive: Callable[[str], LogArchive] | None = None,
        timeout_s: float = 20.0,
    ) -> None:
        self._dsn, self._kafka = dsn, connection
        self._monotonic_s = monotonic_s
        self._replay = IndexReplay(connection, verify, only=only, archive=archive, timeout_s=timeout_s)
        self._comparison = IndexComparison(names)

    async def open(self) -> str:
        """Connects to the log and reads kv.control; the log's id, empty if nobody has begun it. Raises
        LogUnavailableError, UnknownPartitionError, and ArchiveError if there is an archive that can't be used or is
        damaged."""
        return await self._replay.open()

    async def close(self) -> None:
        """Idempotent; it can be opened again, and then begins at the log's start."""
        await self._replay.close()
        self._comparison.forget()

    @property
    def held(self) -> int:
        """Copies in memory."""
        return self._replay.held

    async def round(self, most_copies: int | None = None) -> Round:
        """One comparison. With `most_copies` no more copies than about that are compared, those first that have
        waited longest; what was found of the others before still counts.

        Raises LogUnavailableError, IndexUnavailableError, UnsettledError; what was read by then is kept.
        """
        for _ in range(ANEW):
            try:
                self._replay.seek()
                found = await self._round(most_copies)
                if found is not None and await self._replay.stands():
                    return found
            except LogUnavailableError:
                self._replay.tear()
                raise
            await self.close()
            await self.open()
        raise UnsettledError("the log or the index changed again and again while they were compared")

    async def _round(self, most_copies: int | None) -> Round | None:
        """None when the index stands before what was read already: it is made anew."""
        connection: Any = None
        try:
            connection = await connect(self._dsn)
            # Most of the log is read before the snapshot, which the database shouldn't have to keep for long.
            claimed = await look(connection, self._kafka)
            if self._replay.passed(claimed):
                return None
            await self._replay.read_to(claimed)
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await connection.execute(row_sql.HOLD)
                claimed, taken_s = await look(connection, self._kafka), self._monotonic_s()
                if self._replay.passed(claimed):
                    return None
                ends = await self._replay.read_to(claimed)
                return await self._comparison.compare(
                    connection, self._replay, claimed, ends, taken_s, most_copies
                )
        except UNAVAILABLE as error:
            first = (str(error).splitlines() or [""])[0]
            raise IndexUnavailableError(f"PostgreSQL: {type(error).__name__}: {first}") from error
        finally:
            if connection is not None:
                connection.terminate()
