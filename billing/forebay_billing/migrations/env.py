"""Runs migrations on the connection that the caller hands over in ``config.attributes``."""

from __future__ import annotations

from alembic import context

from forebay_billing.tables import (
    budgets,  # noqa: F401 - their tables join the metadata
    heartbeats,  # noqa: F401 - their tables join the metadata
    notices,  # noqa: F401 - their tables join the metadata
    reports,  # noqa: F401 - their tables join the metadata
    rollups,  # noqa: F401 - their tables join the metadata
)
from forebay_billing.tables.payments import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
