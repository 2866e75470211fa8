"""Block operations a second of `kvledger index rebuild`: filled from an empty database, then compared with itself.

    python -m tests.benchmarks.rebuild

Starts Kafka and PostgreSQL of its own. The work is that of `tests.benchmarks.ingest`, over two partitions. Prints
one JSON line; `per_cpu_s` divides by this process' own processor time, which no other load blurs. Targets:
100,000, then 500,000 operations/s.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from kvledger.command.migrate import run_migrations
from kvledger.command.rebuild import report_json, run_rebuild
from kvledger.settings import Settings
from kvledger.stack.plan import Extent
from kvledger.stack.session import running_stack
from tests.benchmarks.ingest import make_records
from tests.support.indexer_log import indexer_log
from tests.support.stack import stack_settings


async def measure(home: Path, kafka: str, database: str) -> dict[str, Any]:
    settings = Settings(home=home, kafka=kafka, database_url=SecretStr(database), partitions=2)
    found: dict[str, Any] = {"cores": os.cpu_count()}
    async with indexer_log(kafka, "", home, partitions=2) as log:
        for partition in (0, 1):
            records, _ = make_records()
            await log.send(partition, [record.value for record in records])
        for name in ("filled", "compared"):
            cpu_s = time.process_time()
            report = await run_rebuild(settings, database, accept=False, progress=lambda _: None)
            cpu_s = time.process_time() - cpu_s
            found[name] = {
                "equal": report.comparison.equal,
                "per_cpu_s": round(report.block_operations / cpu_s),
                **{
                    key: value
                    for key, value in report_json(report).items()
                    if key in ("block_operations", "block_operations_per_s", "fold_block_operations_per_s",
                               "copies", "spans", "fold_s", "compare_s", "copy_s", "total_s")
                },
            }  # fmt: skip
    found["load_average"] = os.getloadavg()[0]
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with running_stack(stack_settings(home), extent=Extent.SERVICES) as at:
            run_migrations(at.database_url)
            found = asyncio.run(measure(home, at.kafka, at.database_url))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
