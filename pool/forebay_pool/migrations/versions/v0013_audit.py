"""What operators do is written down."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("at_unix_ns", sa.BigInteger, nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(600), nullable=False),
        sa.Column("before", sa.Text, nullable=True, comment="JSON; null: there was nothing"),
        sa.Column("after", sa.Text, nullable=False, comment="JSON"),
    )
    op.create_index("audit_by_subject", "audit", ["subject", "id"])


def downgrade() -> None:
    op.drop_table("audit")
