"""Alembic's environment: a connection is handed in; each migration is a transaction of its own."""

from __future__ import annotations

from alembic import context

from indexer.tables import Base

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    transaction_per_migration=True,
    compare_type=True,
    compare_server_default=False,
)
with context.begin_transaction():
    context.run_migrations()
