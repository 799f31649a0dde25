"""Outbox, webhooks, meters and contacts of the payments."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """New tables only: nothing that was there changes."""
    _create_outbox()
    _create_objects()
    _create_meter_hours()
    _create_events()
    _create_contacts()


def _big(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _text(name: str, chars: int, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(chars), nullable=nullable)


def _create_outbox() -> None:
    op.create_table(
        "payment_outbox",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        _text("tenant", 128),
        _text("kind", 16),
        _text("subject", 512),
        sa.Column("body", sa.Text(), nullable=False),
        _text("idempotency", 64),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("look", sa.Integer(), nullable=False),
        _text("state", 8),
        sa.Column("attempts", sa.Integer(), nullable=False),
        _big("created_at_ns"),
        _big("next_at_ns"),
        _big("first_tried_at_ns", nullable=True),
        _big("settled_at_ns", nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_payment_outbox"),
        sa.UniqueConstraint("kind", "subject", name="uq_payment_outbox_kind_subject"),
        sa.UniqueConstraint("idempotency", name="uq_payment_outbox_idempotency"),
        sa.CheckConstraint("state IN ('waiting', 'done', 'dead', 'skipped')", name="ck_payment_outbox_state"),
    )
    op.create_index("ix_payment_outbox_state_next_at_ns", "payment_outbox", ["state", "next_at_ns"])
    op.create_index("ix_payment_outbox_tenant_state_id", "payment_outbox", ["tenant", "state", "id"])


def _create_objects() -> None:
    op.create_table(
        "payment_objects",
        _text("kind", 16),
        _text("subject", 512),
        _text("tenant", 128),
        _text("stripe_id", 255),
        _text("status", 32),
        _text("currency", 3, nullable=True),
        _big("total_minor", nullable=True),
        _big("paid_minor", nullable=True),
        sa.Column("url", sa.Text(), nullable=True),
        _big("refreshed_at_ns"),
        sa.PrimaryKeyConstraint("kind", "subject", name="pk_payment_objects"),
        sa.UniqueConstraint("stripe_id", name="uq_payment_objects_stripe_id"),
    )
    op.create_index("ix_payment_objects_tenant", "payment_objects", ["tenant"])


def _create_meter_hours() -> None:
    op.create_table(
        "payment_meter_hours",
        _text("tenant", 128),
        _text("meter", 100),
        sa.Column("hour_ns", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.Integer(), autoincrement=False, nullable=False),
        _text("currency", 3),
        _big("value"),
        _text("late", 512, nullable=True),
        sa.PrimaryKeyConstraint("tenant", "meter", "hour_ns", "sequence", name="pk_payment_meter_hours"),
    )
    op.create_index("ix_payment_meter_hours_hour_ns", "payment_meter_hours", ["hour_ns"])


def _create_events() -> None:
    op.create_table(
        "payment_events",
        _text("id", 255),
        _text("type", 128),
        _text("object_id", 255, nullable=True),
        _big("received_at_ns"),
        _text("state", 8),
        sa.Column("attempts", sa.Integer(), nullable=False),
        _big("next_at_ns"),
        sa.Column("note", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_payment_events"),
        sa.CheckConstraint("state IN ('waiting', 'done', 'ignored', 'dead')", name="ck_payment_events_state"),
    )
    op.create_index("ix_payment_events_state_next_at_ns", "payment_events", ["state", "next_at_ns"])


def _create_contacts() -> None:
    op.create_table(
        "payment_contacts",
        _text("tenant", 128),
        sa.Column("version", sa.Integer(), nullable=False),
        _text("name", 150),
        _text("email", 512, nullable=True),
        _big("changed_at_ns"),
        _text("changed_by", 255),
        sa.PrimaryKeyConstraint("tenant", name="pk_payment_contacts"),
    )
