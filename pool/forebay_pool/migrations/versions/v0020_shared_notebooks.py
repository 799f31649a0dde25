"""Notebooks that people share within their tenant, to be read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "shared_notebooks",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("made_ns", sa.BigInteger, nullable=False, comment="Unix time"),
        sa.Column("expires_ns", sa.BigInteger, nullable=False, comment="Unix time"),
        sa.Column("digest", sa.String(64), nullable=False, comment="SHA-256 of the link's key, which is kept nowhere"),
        sa.Column("page", sa.LargeBinary, nullable=False, comment="HTML in UTF-8, deflated (zlib)"),
        sqlite_autoincrement=True,
    )
    op.create_index("shared_notebooks_by_user", "shared_notebooks", ["tenant", "user", "id"])


def downgrade() -> None:
    op.drop_table("shared_notebooks")
