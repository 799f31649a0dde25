"""How many bytes of output are kept of each run, so that nothing has to be read to know it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

ROW_BYTES = 64


def upgrade() -> None:
    size = sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0", comment="What it counts: the text's, and the row's")
    op.add_column("job_output", size)
    op.create_table(
        "job_runs",
        sa.Column("job", sa.BigInteger, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("tenant", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False, comment="Of the output that is kept"),
        sa.Column("last", sa.BigInteger, nullable=False, comment="Number of the last piece that was kept"),
    )
    op.create_index("job_runs_by_user", "job_runs", ["tenant", "user", "job"])
    length = "octet_length(text)" if op.get_bind().dialect.name == "postgresql" else "length(cast(text as blob))"
    op.execute(f"update job_output set bytes = {ROW_BYTES} + {length}")  # noqa: S608 - of two texts that stand here
    op.execute(
        'insert into job_runs (job, attempt, tenant, "user", bytes, last) '
        'select o.job, o.attempt, j.tenant, j."user", sum(o.bytes), max(o.number) '
        'from job_output o join jobs j on j.id = o.job group by o.job, o.attempt, j.tenant, j."user"'
    )


def downgrade() -> None:
    op.drop_table("job_runs")
    op.drop_column("job_output", "bytes")
