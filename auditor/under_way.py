"""P8: transfers that are under way, from evidence to reasons. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from auditor.condition import Findings
from auditor.evidence import Evidence
from auditor.lineage import Covered
from auditor.owing import Owing
from events.ids import VerdictReason


def p8_transfers(evidence: Evidence, one: Owing, found: Findings) -> None:
    """No transfer that may carry something old is under way."""
    if one.case is None:
        return
    for name, domain in one.case.domains.items():
        for transfer in evidence.ages.open_transfers(one.case, name):
            if _may_be_in_scope(evidence, domain, transfer.ids):
                detail = f"transfer {transfer.name} of {len(transfer.ids)} blocks has not ended"
                found.add("P8", VerdictReason.OPEN_TRANSFER, one.subject, detail, waits=one.live)
    _left_open(evidence, one, found)


def _may_be_in_scope(evidence: Evidence, domain: str, ids: Sequence[bytes]) -> bool:
    return any(evidence.scope.covers(domain, block, None) is not Covered.NO for block in ids)


def _left_open(evidence: Evidence, one: Owing, found: Findings) -> None:
    """What an earlier epoch of the engine life began, and no later one has said anything of."""
    assert one.case is not None, "asked of a life that has told something"
    earlier = [evidence.streams[e.stream] for e in one.earlier if e.stream in evidence.streams]
    for index, case in enumerate(earlier):
        later = (*earlier[index + 1 :], one.case)
        named = frozenset[tuple[str, str]]().union(*(told.moves for told in later))
        for name, domain in case.domains.items():
            for transfer in evidence.ages.open_transfers(case, name):
                if (domain, transfer.name) not in named and _may_be_in_scope(evidence, domain, transfer.ids):
                    detail = f"transfer {transfer.name} of an earlier epoch has not ended"
                    found.add("P8", VerdictReason.OPEN_TRANSFER, one.subject, detail, waits=one.live)
