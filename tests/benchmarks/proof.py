"""Sizes of a proof and of what is rendered from it, and the processor time to verify it, by fleet and tenant.

    python -m tests.benchmarks.proof [--json]

Each worker holds two tenants of equal size and removes one; the bundle is that tenant's. `log` are the bytes of all
records of kv.events. Sizes are counted, the same on every machine; the time is not.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass

from auditor.paper.html import to_html
from auditor.paper.ledger import bundle_tables
from auditor.paper.pdf import to_pdf
from auditor.paper.sheet import Source, proof_paper
from auditor.proof import read_statement, unseal
from auditor.verify import verify_bundle
from events.chain import sha256
from tests.support.audit_log import AuditLog
from tests.support.bundle import OPERATOR, bundle

FLEETS = ((2, 96), (8, 1_600))
BLOCKS_A_RECORD = 16


@dataclass(frozen=True, slots=True)
class Row:
    """Sizes in bytes; `blocks` of the tenant on each worker."""

    workers: int
    blocks: int
    log: int
    bundle: int
    html: int
    pdf: int
    csv: int
    parquet: int
    verify_s: float


def measure(workers: int, blocks: int) -> Row:
    log = AuditLog()
    hooks = [log.hook(f"worker-{number:03}{'x' * (number % 4)}").open() for number in range(workers)]
    for hook in hooks:
        for first in range(0, blocks, BLOCKS_A_RECORD):
            names = range(first, min(first + BLOCKS_A_RECORD, blocks))
            hook.store("acme", *names)
            hook.store("umbrella", *names)
    request = log.delete()
    for hook in hooks:
        hook.obey(request)
    nonce = log.nonce(request)
    for hook in hooks:
        hook.ack(request, nonce=nonce)
    raw = bundle(log, request)
    begun = time.process_time()
    verified = verify_bundle(raw, OPERATOR.public_key)
    spent = time.process_time() - begun
    assert verified.verdict.kind == "PROVEN"
    predicate = read_statement(unseal(raw.partition(b"\n")[0])[1]).predicate
    source = Source(sha256(raw).hex(), len(raw), "benchmark", OPERATOR.public_key.hex(), "operator")
    paper, tables = proof_paper(predicate, source), bundle_tables(raw, predicate, source).values()
    return Row(
        workers,
        blocks,
        sum(len(one.value) for records in log.events.values() for one in records),
        len(raw),
        len(to_html(paper)),
        len(to_pdf(paper)),
        sum(len(table.to_csv()) for table in tables),
        sum(len(table.to_parquet()) for table in tables),
        round(spent, 3),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    rows = [measure(*fleet) for fleet in FLEETS]
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print(" ".join(f"{name:>10}" for name in Row.__slots__))
    for row in rows:
        print(" ".join(f"{value:>10}" for value in asdict(row).values()))


if __name__ == "__main__":
    main()
