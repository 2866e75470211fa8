"""Alembic's environment: a connection is handed in; each migration is a transaction of its own."""

from __future__ import annotations

from alembic import context

from indexer.tables import Base

PARTITIONED = ("copy_span_", "access_log_")


def _is_ours(name: str | None, kind: str, parents: object) -> bool:
    """Partitions come and go with the days; the table they are parts of is what the code defines."""
    del parents
    return not (kind == "table" and name is not None and name.startswith(PARTITIONED))


connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    transaction_per_migration=True,
    compare_type=True,
    compare_server_default=False,
    include_name=_is_ours,
)
with context.begin_transaction():
    context.run_migrations()
