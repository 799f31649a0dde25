"""Jobs, what they print, and their schedules."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def _program() -> list[sa.Column[Any]]:
    return [
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False, comment="script, module or notebook"),
        sa.Column("file", sa.Text, nullable=False, comment="In the user's home; of a module its name"),
        sa.Column("arguments", sa.Text, nullable=False, comment="JSON: [text, ...]"),
        sa.Column("folder", sa.Text, nullable=False, comment="In the user's home"),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("flavor", sa.String(64), nullable=True),
        sa.Column("retries_max", sa.Integer, nullable=False),
        sa.Column("time_limit_seconds", sa.Integer, nullable=True),
        sa.Column("created_ns", sa.BigInteger, nullable=False),
    ]


def upgrade() -> None:
    op.create_table(
        "jobs",
        *_program(),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("not_before_ns", sa.BigInteger, nullable=False),
        sa.Column("since_ns", sa.BigInteger, nullable=False, comment="When it came into its state"),
        sa.Column("started_ns", sa.BigInteger, nullable=True),
        sa.Column("heard_ns", sa.BigInteger, nullable=True, comment="When its runner last spoke"),
        sa.Column("server", sa.Boolean, nullable=False, comment="Whether JupyterHub may have a server for it"),
        sa.Column("key", sa.String(64), nullable=True, comment="Of the runner that has it"),
        sa.Column("reason", sa.String(32), nullable=True),
        sa.Column("exit_status", sa.Integer, nullable=True),
        sa.Column("schedule", sa.BigInteger, nullable=True),
        sqlite_autoincrement=True,
    )
    op.create_index("jobs_by_user", "jobs", ["tenant", "user", "id"])
    op.create_index("jobs_by_state", "jobs", ["state"])
    op.create_index("jobs_by_server", "jobs", ["server"])
    op.create_index("jobs_by_schedule", "jobs", ["schedule"])
    op.create_table(
        "job_output",
        sa.Column("job", sa.BigInteger, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, comment="From 1; the first ones are dropped of a long output"),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_table(
        "schedules",
        *_program(),
        sa.Column("cron", sa.String(128), nullable=False),
        sa.Column("zone", sa.String(64), nullable=False),
        sa.Column("next_ns", sa.BigInteger, nullable=False),
        sa.Column("skipped_ns", sa.BigInteger, nullable=True, comment="When it last came due while its job before was not over"),
        sqlite_autoincrement=True,
    )
    op.create_index("schedules_by_time", "schedules", ["next_ns"])


def downgrade() -> None:
    for table in ("schedules", "job_output", "jobs"):
        op.drop_table(table)
