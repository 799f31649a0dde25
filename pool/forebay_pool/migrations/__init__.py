"""Alembic's migrations of the pool's database."""
