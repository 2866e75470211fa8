"""Reads which leaves are bound to the subjects of requests, and whether all of kv.subjects was there to be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from auditor.evidence import Evidence
from auditor.log import AuditReader
from auditor.segment import PartitionWatch, raw_leaf
from events.kafka.connection import RawRecord
from events.model.audit import Segment
from events.model.control import SubjectScope
from events.subject import Bindings
from events.topic import SUBJECTS


async def bind(log: AuditReader, evidence: Iterable[Evidence], sealed: Sequence[Segment]) -> list[str]:
    """Reads kv.subjects once and tells those requests that name a pseudonym what is `bound` to it by now, and what of
    the topic is `cut` and `missing`. What came out of it against `sealed`, runs of it that auditors sealed, in order.
    Raises what `log` raises."""
    wanted: list[tuple[Evidence, Bindings, int]] = []
    for one in evidence:
        scope = one.request.scope
        if isinstance(scope, SubjectScope) and scope.pseudonym is not None:
            grants, verify = one.registry.grants.values(), one.registry.verify
            bindings = Bindings.of(scope.domain, scope.pseudonym, grants, verify)
            wanted.append((one, bindings, scope.bound_to or 0))
    if not wanted:
        return []
    where = SUBJECTS.name, 0
    watch, seen = PartitionWatch(where, sealed, 0), 0

    def take(record: RawRecord) -> None:
        nonlocal seen
        seen += 1
        watch.take(record.offset, raw_leaf(record.offset, record.value, record.signature))
        for _, bindings, _ in wanted:
            bindings.take(record.value, record.signature)

    read = await log.read_subjects(take)
    for one, bindings, bound_to in wanted:
        known = one.scope
        known.bound, known.cut, known.missing = None, 0, 0
        if read is not None:
            known.bound, known.cut = frozenset(bindings.leaves), read.start
            known.missing = len(read) - seen + bindings.unread + max(0, bound_to - read.stop)
    return [] if read is None else watch.settle(read.stop, start=read.start).problems
