"""What a pool that starts needs to go on where another stopped: sessions, workers, open leases, and who leads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    leadership = op.create_table(
        "leadership",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False, comment="1: there is one row"),
        sa.Column("epoch", sa.BigInteger, nullable=False, comment="Counts the pools that led; every write of a former one is refused"),
        sa.Column("url", sa.Text, nullable=False, comment="Where the one that leads serves"),
    )
    op.bulk_insert(leadership, [{"id": 1, "epoch": 0, "url": ""}])
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("secret", sa.String(128), nullable=False, comment="Hex; tickets are derived from it"),
        sa.Column("tenant", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("process", sa.Text, nullable=False, comment="JSON string"),
        sa.Column("flavor", sa.String(64), nullable=False),
        sa.Column("since_unix_ns", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False, comment="Of its latest lease"),
        sa.Column("span", sa.Text, nullable=True, comment="JSON of its latest lease's span"),
        sa.Column("worker", sa.String(255), nullable=True),
        sa.Column("opened", sa.Integer, nullable=False, comment="1: its worker was ever given a lease"),
        sa.Column("reserved_bytes", sa.BigInteger, nullable=False, comment="Set aside for it on its worker's device"),
        sa.Column("parked_bytes", sa.BigInteger, nullable=True, comment="In host memory, where it is parked"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("devices", sa.Text, nullable=False, comment="JSON list of ids; it computes on the first"),
        sa.Column("token", sa.String(64), nullable=False, comment="SHA-256 of the token that it links up with"),
        sa.Column("boot", sa.String(64), nullable=False, comment="Which run of which host the process belongs to"),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False, comment="When the process began, in the host's clock ticks since its boot"),
    )
    op.create_table(
        "open_leases",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("session", sa.String(255), nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False, comment="The client's request that it answered"),
        sa.Column("tenant", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("flavor", sa.String(64), nullable=False),
        sa.Column("devices", sa.Text, nullable=False, comment="JSON list of ids"),
        sa.Column("device_model", sa.String(128), nullable=False),
        sa.Column("share_milli", sa.BigInteger, nullable=False, comment="Of each device, in thousandths"),
        sa.Column("span", sa.Text, nullable=False, comment="JSON of the wire's Span"),
        sa.Column("price_nano_per_second", sa.BigInteger, nullable=True),
        sa.Column("currency", sa.String(3), nullable=True),
        sa.Column("waited_ns", sa.BigInteger, nullable=False),
        sa.Column("boot", sa.String(64), nullable=False, comment="Whose monotonic clock opened_ns is of"),
        sa.Column("opened_ns", sa.BigInteger, nullable=False),
        sa.Column("opened_unix_ns", sa.BigInteger, nullable=False),
        sa.Column("confirmed_ns", sa.BigInteger, nullable=False, comment="For how long its worker has confirmed to hold it"),
    )


def downgrade() -> None:
    for table in ("open_leases", "workers", "sessions", "leadership"):
        op.drop_table(table)
