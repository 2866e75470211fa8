"""Alembic migrations of the index; run by `migrations.run.run_migrations`."""
