"""`compliance.owes_ack` leaves out kvledger's own canary streams, which hold nothing, as the auditor does.

One that ever declared a profile, without which no copy can be named, is a holder like any other.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

VIEW = """
CREATE OR REPLACE VIEW compliance.owes_ack WITH (security_barrier) AS
SELECT r.number AS request, d.tenant, d.name AS domain, g.worker, g.rank, g.epoch, g.engine_life,
       g.fenced, k.old_left, k.refused, s.status AS stream_status,
       now() - r.requested_at AS waiting
FROM deletion_request r
JOIN domain d ON CASE r.scope_type
    WHEN 'tenant' THEN d.tenant = r.tenant
    WHEN 'profile' THEN true
    ELSE d.name = r.domain
END
CROSS JOIN registration g
LEFT JOIN stream s ON (s.worker, s.rank, s.epoch) = (g.worker, g.rank, g.epoch)
LEFT JOIN stream_alias a ON a.stream_id = s.id AND a.domain = d.name
LEFT JOIN deletion_ack k ON k.stream_id = s.id AND k.alias = a.alias AND k.request = r.number
WHERE NOT g.exit_attested
AND NOT (coalesce(s.status, '') = 'closed' AND coalesce(s.engine_ended, false))
AND NOT EXISTS (
    SELECT FROM registration n
    WHERE n.worker = g.worker AND n.rank = g.rank AND n.engine_life = g.engine_life
    AND n.epoch_no > g.epoch_no
)
AND NOT (k.request IS NOT NULL AND k.old_left = 0 AND k.refused IS NULL)
"""
CANARY = """
AND NOT (g.worker = 'kvledger.canary' AND NOT EXISTS (
    SELECT FROM registration e
    JOIN stream x ON (x.worker, x.rank, x.epoch) = (e.worker, e.rank, e.epoch)
    JOIN profile p ON p.stream_id = x.id
    WHERE (e.worker, e.rank, e.engine_life) = (g.worker, g.rank, g.engine_life)
))
"""
MEANING = (
    "Registered streams that have not discharged a request, with how it stands there if they said so."
    " Fenced and superseded ones still owe until the end of their engine life is attested."
)
EXEMPT = " The canary of kvledger, which holds nothing, owes nothing."


def upgrade() -> None:
    op.execute(VIEW + CANARY)
    op.execute(f"COMMENT ON VIEW compliance.owes_ack IS '{MEANING}{EXEMPT}'")


def downgrade() -> None:
    op.execute(VIEW)
    op.execute(f"COMMENT ON VIEW compliance.owes_ack IS '{MEANING}'")
