"""Alembic's environment and versions, shipped in the package; :func:`forebay_billing.engines.migrate` runs them."""
