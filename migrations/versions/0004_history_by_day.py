"""`copy_span` by day, so that history older than the audit window goes as whole tables.

What is there becomes the default partition and ages out row by row. A migration must not break the previous
release: it writes and reads the same columns under the same name.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

COLUMNS = """
    holder_id bigint NOT NULL, group_index smallint NOT NULL, block bytea NOT NULL, attribute_id bigint NOT NULL,
    from_offset bigint NOT NULL, to_offset bigint NOT NULL, reason text NOT NULL, request bigint,
    ended_at timestamptz NOT NULL DEFAULT now()
"""
GRANTS = (
    "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON copy_span TO kvledger_indexer",
    "GRANT SELECT ON copy_span TO kvledger_lookup, kvledger_compliance",
)
INDEXES = (
    "CREATE INDEX ix_copy_span_holder_id_to_offset ON copy_span (holder_id, to_offset)",
    "CREATE INDEX ix_copy_span_ended_at ON copy_span USING brin (ended_at)",
)
RENAMED = {
    "ix_copy_span_holder_id_to_offset": "copy_span_default_holder_id_to_offset_idx",
    "ix_copy_span_ended_at": "copy_span_default_ended_at_idx",
}

# The indexer's role owns no table: what makes and drops partitions runs as their owner.
FUNCTION = """
CREATE FUNCTION maintain_copy_span(keep_days int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public SET timezone = 'UTC' AS $$
DECLARE
    day date;
    part text;
BEGIN
    FOR day IN SELECT generate_series(current_date + 1, current_date + 3, interval '1 day')::date LOOP
        part := 'copy_span_' || to_char(day, 'YYYYMMDD');
        IF to_regclass('public.' || part) IS NULL THEN
            EXECUTE format('CREATE TABLE public.%I PARTITION OF public.copy_span FOR VALUES FROM (%L) TO (%L)',
                           part, day, day + 1);
        END IF;
    END LOOP;
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'public.copy_span'::regclass AND c.relname ~ '^copy_span_[0-9]{8}$'
        AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= current_date - keep_days
    LOOP
        EXECUTE format('DROP TABLE public.%I', part);
    END LOOP;
    DELETE FROM copy_span WHERE ended_at < now() - make_interval(days => keep_days);
END
$$
"""


def upgrade() -> None:
    view = _drop_view()
    op.execute("ALTER TABLE copy_span RENAME TO copy_span_default")
    for old, new in RENAMED.items():
        op.execute(f"ALTER INDEX {old} RENAME TO {new}")
    op.execute(f"CREATE TABLE copy_span ({COLUMNS}) PARTITION BY RANGE (ended_at)")
    op.execute("ALTER TABLE copy_span ATTACH PARTITION copy_span_default DEFAULT")
    for statement in (*INDEXES, *GRANTS):
        op.execute(statement)
    # A partition is reached through its table only.
    op.execute("REVOKE ALL ON copy_span_default FROM kvledger_indexer, kvledger_lookup, kvledger_compliance")
    op.execute(FUNCTION)
    op.execute("REVOKE ALL ON FUNCTION maintain_copy_span FROM PUBLIC")
    op.execute("GRANT EXECUTE ON FUNCTION maintain_copy_span TO kvledger_indexer")
    _make_view(view)


def downgrade() -> None:
    view = _drop_view()
    op.execute("DROP FUNCTION maintain_copy_span")
    op.execute(f"CREATE TABLE copy_span_whole ({COLUMNS})")
    op.execute("INSERT INTO copy_span_whole SELECT * FROM copy_span")
    op.execute("DROP TABLE copy_span")
    op.execute("ALTER TABLE copy_span_whole RENAME TO copy_span")
    for statement in (*INDEXES, *GRANTS):
        op.execute(statement)
    _make_view(view)


def _drop_view() -> str:
    """A view follows the table it was made on, whatever that is called: it is made again."""
    found = op.get_bind().scalar(sa.text("SELECT pg_get_viewdef('compliance.data_history'::regclass)"))
    op.execute("DROP VIEW compliance.data_history")
    return str(found)


def _make_view(query: str) -> None:
    op.execute(sa.text(f"CREATE VIEW compliance.data_history WITH (security_barrier) AS {query}"))
    op.execute("ALTER VIEW compliance.data_history OWNER TO kvledger_compliance")
    op.execute(
        "COMMENT ON VIEW compliance.data_history IS 'Every copy of a tenant within the audit window, from when"
        " to when (null: still there) and why it ended.'"
    )
    op.execute("GRANT SELECT ON compliance.data_history TO kvledger_auditor, kvledger_tenant")
