"""All that a database of billing has at first, as ``deploy/packages/squash.py`` read it from both kinds of database."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from alembic import op

revision = "0027"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """On an empty database. Statements go to the driver as they are: it takes no percent sign or colon for a parameter."""
    connection = op.get_bind()
    script = Path(__file__).with_name(f"first.{connection.dialect.name}.sql").read_text(encoding="utf-8")
    with closing(connection.connection.cursor()) as cursor:
        for statement in script.split("-- next\n"):
            cursor.execute(statement)
