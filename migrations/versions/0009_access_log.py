"""Lookups by principal and domain, from `kv.access`, by day; who asked is read in `compliance.access`.

The previous release neither reads nor writes any of it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TABLE = """
CREATE TABLE access_log (
    logged_at timestamptz NOT NULL, replica text NOT NULL, from_at timestamptz NOT NULL, to_at timestamptz NOT NULL,
    principal text NOT NULL, domain text NOT NULL, lookups bigint NOT NULL, matched_blocks bigint NOT NULL
) PARTITION BY RANGE (logged_at)
"""

# The indexer's role owns no table: what makes and drops partitions runs as their owner.
FUNCTION = """
CREATE FUNCTION maintain_access_log(keep_days int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public SET timezone = 'UTC' AS $$
DECLARE
    day date;
    part text;
BEGIN
    FOR day IN SELECT generate_series(current_date + 1, current_date + 3, interval '1 day')::date LOOP
        part := 'access_log_' || to_char(day, 'YYYYMMDD');
        IF to_regclass('public.' || part) IS NULL AND NOT EXISTS (
            SELECT FROM access_log_default WHERE logged_at >= day AND logged_at < day + 1
        ) THEN
            EXECUTE format('CREATE TABLE public.%I PARTITION OF public.access_log FOR VALUES FROM (%L) TO (%L)',
                           part, day, day + 1);
        END IF;
    END LOOP;
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'public.access_log'::regclass AND c.relname ~ '^access_log_[0-9]{8}$'
        AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= current_date - keep_days
    LOOP
        EXECUTE format('DROP TABLE public.%I', part);
    END LOOP;
    DELETE FROM access_log WHERE logged_at < now() - make_interval(days => keep_days);
    DELETE FROM access_batch WHERE logged_at < now() - make_interval(days => keep_days);
END
$$
"""
ACCESS = """
CREATE VIEW compliance.access WITH (security_barrier) AS
SELECT d.tenant, d.name AS domain, l.principal, l.replica, l.from_at, l.to_at, l.lookups, l.matched_blocks
FROM domain d JOIN access_log l ON l.domain = d.name
"""
LOSS = """
CREATE VIEW compliance.access_loss WITH (security_barrier) AS
SELECT replica, from_at, to_at, lost FROM access_batch WHERE lost > 0
"""
COMMENTS = (
    "COMMENT ON VIEW compliance.access IS 'Lookups in a tenant''s domains by principal, a row for each replica and"
    " stretch of time, within the audit window.'",
    "COMMENT ON VIEW compliance.access_loss IS 'When a replica of the lookup service could not keep who asked, and how"
    " many lookups that were.'",
)


def upgrade() -> None:
    op.create_table(
        "access_batch",
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("from_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("to_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lost", sa.BigInteger(), nullable=False),
        sa.Column("logged_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("replica", "from_at", name=op.f("pk_access_batch")),
    )
    op.execute(TABLE)
    op.execute("CREATE TABLE access_log_default PARTITION OF access_log DEFAULT")
    op.execute("CREATE INDEX ix_access_log_domain_logged_at ON access_log (domain, logged_at)")
    for table in ("access_batch", "access_log"):
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON {table} TO kvledger_indexer")
        op.execute(f"GRANT SELECT ON {table} TO kvledger_compliance")
    op.execute(FUNCTION)
    op.execute("REVOKE ALL ON FUNCTION maintain_access_log FROM PUBLIC")
    op.execute("GRANT EXECUTE ON FUNCTION maintain_access_log TO kvledger_indexer")
    for statement in (ACCESS, LOSS, *COMMENTS):
        op.execute(statement)
    for view in ("access", "access_loss"):
        op.execute(f"ALTER VIEW compliance.{view} OWNER TO kvledger_compliance")
    op.execute("GRANT SELECT ON compliance.access TO kvledger_auditor, kvledger_tenant")
    op.execute("GRANT SELECT ON compliance.access_loss TO kvledger_auditor")


def downgrade() -> None:
    op.execute("DROP VIEW compliance.access, compliance.access_loss")
    op.execute("DROP FUNCTION maintain_access_log")
    op.execute("DROP TABLE access_log, access_batch")
