"""Runs migrations on the connection that the caller hands over in ``config.attributes``."""

from __future__ import annotations

from alembic import context

from forebay_billing import budget_tables, report_tables  # noqa: F401 - their tables join the metadata
from forebay_billing.payments.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
