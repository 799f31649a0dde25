"""What the databases of an installation hold, by which a rollback knows what it would lose: revisions of schemas, numbers of records."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass

from forebay_admin.backup import BackupError, Database

RECORDS = {
    "pool": {
        "lease_segments": "leases",
        "jobs": "jobs",
        "schedules": "schedules of jobs",
        "shared_notebooks": "shared notebooks",
        "audit": "changes by operators",
    },
    "billing": {
        "usage": "records of usage",
        "transactions": "transactions of the books",
        "invoices": "invoices",
        "audit": "changes of prices, budgets and bills",
    },
    "hub": {"users": "people"},
}
"""By database: the tables whose rows nobody can make again, and what they are called."""
QUERY_SECONDS_MAX = 300


@dataclass(frozen=True)
class RecordCount:
    """A database at one moment: the revision of its schema, and how many rows each table of RECORDS has."""

    revision: str
    rows: Mapping[str, int]

    @classmethod
    def of(cls, database: Database) -> RecordCount:
        """Raises BackupError."""
        there = set(_column(database, _TABLES[database.kind]))
        revision = _column(database, "SELECT version_num FROM alembic_version") if "alembic_version" in there else []
        tables = [table for table in RECORDS[database.name] if table in there]
        rows = {table: int(_column(database, f"SELECT count(*) FROM {table}")[0]) for table in tables}  # noqa: S608 names of ours
        return cls(",".join(sorted(revision)), rows)

    def since(self, before: RecordCount, names: Mapping[str, str]) -> list[str]:
        """What was written since, in words."""
        grown = {table: count - before.rows.get(table, 0) for table, count in self.rows.items()}
        return [f"{count:,} {names[table]}" for table, count in grown.items() if count > 0]


_TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table'",
    "postgresql": "SELECT tablename FROM pg_tables WHERE schemaname = ANY (current_schemas(false))",
}


def counts(databases: Iterable[Database]) -> dict[str, RecordCount]:
    """By the name of the database. Raises BackupError."""
    return {database.name: RecordCount.of(database) for database in databases}


def _column(database: Database, query: str) -> list[str]:
    """The first column of an answer."""
    if database.path is None:
        command = ["psql", "--no-psqlrc", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1", f"--dbname={database.url}"]
        try:
            done = subprocess.run(
                [*command, f"--command={query}"], capture_output=True, text=True, check=True, timeout=QUERY_SECONDS_MAX
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = " ".join(str(getattr(error, "stderr", "") or error).split())[:500]
            raise BackupError(f"The database of {database.name} cannot be asked with psql: {said}") from None
        return done.stdout.split()
    try:
        with closing(sqlite3.connect(f"{database.path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            return [str(row[0]) for row in connection.execute(query)]
    except sqlite3.Error as error:
        raise BackupError(f"{database.path} cannot be asked ({error}).") from None
