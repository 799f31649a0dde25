"""What the tests of operators' commands share: billing's schema, to be copied."""

from __future__ import annotations

from pathlib import Path

import pytest
from forebay_billing.tables.engines import migrate, open_engines


@pytest.fixture(scope="session")
def migrated_books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite database with the schema alone: migrations take a second, and a copy does not."""
    path = tmp_path_factory.mktemp("migrated") / "billing.sqlite3"
    engines = open_engines(f"sqlite:///{path}", 1)
    migrate(engines)
    engines.dispose()
    return path
