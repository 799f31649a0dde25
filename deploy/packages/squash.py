"""Makes one first migration of all that pool and billing have, before a first release: no older database is anybody's.

``python deploy/packages/squash.py`` brings empty databases of both kinds to the newest revision, reads what is in them, and writes that as
one migration of the same revision, a file of SQL for each kind of database beside it. So a database at that revision stays as it is.
It needs PostgreSQL's server programs, and is run again where somebody added a migration meanwhile.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from alembic.script import ScriptDirectory
from forebay_billing.tables.engines import migrate, open_engines
from forebay_pool.store.database import Store

CHECKOUT = Path(__file__).resolve().parents[2]
NEXT = "-- next\n"
"""Between two statements, since triggers and functions have semicolons of their own."""
ALEMBIC = "alembic_version"
LEFT_OUT = re.compile(r"^(SET |SELECT pg_catalog\.set_config|--|\\|CREATE SCHEMA|COMMENT ON SCHEMA)")
LISTS = re.compile(r"\(ARRAY\[((?:'[^',]*'::character varying(?:, )?)+)\]\)::text\[\]")
"""As PostgreSQL tells the words of a CHECK at first; of a database that was made of its own words it tells a cast of each."""
MIGRATION = '''"""All that a database of {name} has at first, as ``deploy/packages/squash.py`` read it from both kinds of database."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from alembic import op

revision = "{revision}"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """On an empty database. Statements go to the driver as they are: it takes no percent sign or colon for a parameter."""
    connection = op.get_bind()
    script = Path(__file__).with_name(f"first.{{connection.dialect.name}}.sql").read_text(encoding="utf-8")
    with closing(connection.connection.cursor()) as cursor:
        for statement in script.split("{separator}\\n"):
            cursor.execute(statement)
'''


@dataclass(frozen=True)
class Service:
    """``prefix`` begins the names of its migrations."""

    name: str
    prefix: str
    bring: Callable[[str], None]
    """A database, by its URL, to the newest revision."""

    @property
    def folder(self) -> Path:
        return CHECKOUT / self.name / f"forebay_{self.name}" / "migrations" / "versions"

    @property
    def revision(self) -> str:
        """The newest."""
        return str(ScriptDirectory(str(self.folder.parent)).get_current_head())


def _bring_pool(url: str) -> None:
    store = Store(url)
    store.migrate()
    store.close()


def _bring_billing(url: str) -> None:
    engines = open_engines(url, 1)
    migrate(engines)
    engines.dispose()


SERVICES = (Service("pool", "v", _bring_pool), Service("billing", "r", _bring_billing))


@contextmanager
def postgresql(folder: Path, programs: Path) -> Iterator[Callable[[str], str]]:
    """A server of its own; the URL of a new database by its name."""
    account = ("runuser", "-u", "postgres", "--") if os.geteuid() == 0 else ()
    folder.chmod(0o777)
    data = folder / "data"
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
    subprocess.run([*account, programs / "initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "-D", data], **quiet)  # type: ignore[call-overload]
    subprocess.run([*account, programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start"], **quiet)  # type: ignore[call-overload]

    def create(name: str) -> str:
        subprocess.run([programs / "createdb", "-h", folder, "-U", "postgres", name], check=True)
        return f"postgresql+psycopg://postgres@/{name}?host={folder}"

    try:
        yield create
    finally:
        subprocess.run([*account, programs / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **quiet)  # type: ignore[call-overload]


def of_postgresql(programs: Path, url: str) -> list[str]:
    """Statements that make the database as it is, with its rows."""
    plain = url.replace("postgresql+psycopg://", "postgresql://")
    options = ["--no-owner", "--no-privileges", "--inserts", f"--exclude-table={ALEMBIC}", f"--dbname={plain}"]
    dumped = subprocess.run([programs / "pg_dump", *options], capture_output=True, text=True, check=True).stdout
    kept = [line for line in dumped.splitlines() if not LEFT_OUT.match(line)]
    return split(LISTS.sub(_each_cast, re.sub(r"\bpublic\.", "", "\n".join(kept))))


def _each_cast(found: re.Match[str]) -> str:
    return f"ARRAY[{', '.join(f'({word})::text' for word in found[1].split(', '))}]"


def split(script: str) -> list[str]:
    """Statements of PostgreSQL: each ends with a semicolon at the end of a line, but for those within ``$$``."""
    found, lines, inside = [], list[str](), False
    for line in script.splitlines():
        if not lines and not line.strip():
            continue
        lines.append(line)
        inside ^= line.count("$$") % 2 == 1
        if line.endswith(";") and not inside:
            found.append("\n".join(lines).removesuffix(";"))
            lines = []
    return found


def of_sqlite(path: Path) -> list[str]:
    """As :func:`of_postgresql`; rows come before triggers, which would refuse some."""
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND tbl_name NOT LIKE 'sqlite_%' ORDER BY rowid"
        parts = [(kind, name, sql) for kind, name, sql in connection.execute(query) if name != ALEMBIC]
        rows = [line.removesuffix(";") for line in connection.iterdump() if line.startswith("INSERT INTO") and ALEMBIC not in line]
    kept = [row for row in rows if not row.startswith('INSERT INTO "sqlite_sequence"')]
    made = [sql for kind, _, sql in parts if kind in ("table", "index")]
    return [*made, *kept, *(sql for kind, _, sql in parts if kind == "trigger")]


def read(service: Service, programs: Path, folder: Path, create: Callable[[str], str]) -> dict[str, str]:
    """The files of a service's first migration, by name."""
    file = folder / f"{service.name}.sqlite"
    service.bring(f"sqlite:///{file}")
    url = create(service.name)
    service.bring(url)
    revision = service.revision
    written = MIGRATION.format(name=service.name, revision=revision, separator=NEXT.strip())
    return {
        f"{service.prefix}{revision}_first.py": written,
        "first.sqlite.sql": NEXT.join(f"{statement.strip()}\n" for statement in of_sqlite(file)),
        "first.postgresql.sql": NEXT.join(f"{statement.strip()}\n" for statement in of_postgresql(programs, url)),
    }


def programs_of_postgresql() -> Path:
    """Where the newest server's are."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    beside = shutil.which("initdb")
    if not found and beside is None:
        sys.exit("squash.py: PostgreSQL's server programs are not installed; on Debian run: apt install postgresql")
    return found[-1].parent if found else Path(str(beside)).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, help="write below this folder, and leave the checkout as it is")
    options = parser.parse_args()
    programs = programs_of_postgresql()
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:  # a socket's path is short
        folder = Path(scratch)
        with postgresql(folder, programs) as create:
            made = {service: read(service, programs, folder, create) for service in SERVICES}
    for service, files in made.items():
        target = service.folder if options.into is None else options.into / service.name
        target.mkdir(parents=True, exist_ok=True)
        for old in [*target.glob(f"{service.prefix}[0-9]*.py"), *target.glob("*.sql")]:
            old.unlink()
        for name, text in files.items():
            (target / name).write_text(text, encoding="utf-8")
        print(f"{target}: {', '.join(files)}")


if __name__ == "__main__":
    main()
