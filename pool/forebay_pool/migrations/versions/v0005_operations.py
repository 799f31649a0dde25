"""What operators closed, policies of models, and bounds of flavors."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("flavors", sa.Column("residents_max", sa.Integer, nullable=True))
    op.create_table(
        "closures",
        sa.Column("kind", sa.String(8), primary_key=True, comment="node or device"),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("cause", sa.Text, nullable=False),
    )
    op.create_table(
        "model_policies",
        sa.Column("model", sa.String(128), primary_key=True),
        sa.Column("tenants", sa.Text, nullable=True, comment="JSON: [tenant, ...]; null: all"),
        sa.Column("surcharge_nano_per_second", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("model_policies")
    op.drop_table("closures")
    op.drop_column("flavors", "residents_max")
