"""Alembic's environment and versions, shipped in the package; :func:`forebay_billing.tables.engines.migrate` runs them."""
