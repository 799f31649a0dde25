"""Opens the database: one engine that writes, one that reads, and the migrations.

SQLite runs with a write-ahead log and full synchronisation. ``BEGIN`` is ours, because Python's driver would begin too late:
a writer takes the lock at once (``BEGIN IMMEDIATE``), a reader gets one snapshot for all its queries. PostgreSQL gets the same
by an advisory lock that every writer takes first, and by repeatable-read snapshots.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import alembic.util
from forebay_service.errors import OTHER_RELEASE, SettingsError
from forebay_service.settings import check_driver
from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError

from forebay_billing.errors import LedgerError, StoreUnavailable

log = logging.getLogger(__name__)

WRITER_LOCK_KEY = 0x666F7265626179
"""PostgreSQL's advisory lock of whoever writes the books ("forebay")."""
READERS_MAX = 4
CONNECT_SECONDS_MAX = 5
HELD_SECONDS_MAX = 30
"""PostgreSQL takes back what a writer has begun that says nothing for so long: its host is lost, or it stands still. Others wait for it."""


@dataclass(frozen=True)
class Engines:
    """``writer`` serves one thread, ``reader`` at most READERS_MAX."""

    writer: Engine
    reader: Engine

    def dispose(self) -> None:
        """Closes all connections."""
        self.writer.dispose()
        self.reader.dispose()


def open_engines(database_url: str, busy_seconds: float) -> Engines:
    """Opens ``sqlite:///path`` or ``postgresql+psycopg://…``; waits ``busy_seconds`` for a lock. Raises SettingsError."""
    try:
        url = make_url(database_url)
    except ArgumentError:
        raise SettingsError("database_url is not a database URL, such as sqlite:////srv/billing.sqlite3.") from None
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise SettingsError("database_url: the books need a file; an SQLite database in memory would forget them.")
        _create_folder(Path(url.database).parent)
        return Engines(_sqlite(database_url, busy_seconds, "BEGIN IMMEDIATE"), _sqlite(database_url, busy_seconds, "BEGIN"))
    if url.drivername == "postgresql+psycopg":
        check_driver(database_url, "forebay-billing")
        return Engines(_postgresql(database_url, busy_seconds, {}, _BOUND), _postgresql(database_url, busy_seconds, _SNAPSHOT))
    raise SettingsError(f"database_url: {url.drivername!r} is not supported; use sqlite:///path or postgresql+psycopg://host/name.")


_BOUND = f" -c idle_in_transaction_session_timeout={HELD_SECONDS_MAX * 1000}"
_SNAPSHOT: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


def _create_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"database_url: the folder {folder} cannot be made ({error.strerror}).") from None


def _sqlite(url: str, busy_seconds: float, begin: str) -> Engine:
    engine = create_engine(url, pool_size=READERS_MAX, max_overflow=0, connect_args={"timeout": busy_seconds, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "recursive_triggers = ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    def start(connection: Any) -> None:
        connection.execute(begin).close()

    engine.dialect.do_begin = start  # type: ignore[assignment] # what fails there is told as of any statement
    return engine


def _postgresql(url: str, busy_seconds: float, options: dict[str, Any], more: str = "") -> Engine:
    milliseconds = max(1, int(busy_seconds * 1000))
    # a plan that was kept from when the tables were small would read all of them now; and to compile one takes longer than to run it
    session = f"-c lock_timeout={milliseconds} -c timezone=UTC -c plan_cache_mode=force_custom_plan -c jit=off"
    connect_args = {"connect_timeout": CONNECT_SECONDS_MAX, "options": session + more}
    engine = create_engine(url, pool_size=READERS_MAX, max_overflow=0, pool_pre_ping=True, connect_args=connect_args)
    return engine.execution_options(**options)


@contextmanager
def writing(engines: Engines) -> Iterator[Connection]:
    """A transaction of the only writer. Raises StoreUnavailable, LedgerError where a guard refuses; then nothing of it is written."""
    with _translated(), engines.writer.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITER_LOCK_KEY})")
        yield connection


@contextmanager
def reading(engines: Engines) -> Iterator[Connection]:
    """One snapshot. Raises StoreUnavailable."""
    with _translated(), engines.reader.begin() as connection:
        yield connection


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        reason = " ".join(str(error.orig).split())
        log.error("the database refuses", extra={"action": "store.failed", "error": type(error).__name__, "reason": reason})
        if isinstance(error, OperationalError | InterfaceError):
            raise StoreUnavailable(f"The billing database failed ({reason}); nothing was written, send the same again later.") from error
        raise LedgerError(f"The billing database refused ({reason}); nothing was written, an operator must look.") from error


def migrate(engines: Engines) -> None:
    """Brings the schema up to this version. Raises SettingsError where the database is of a later one, StoreUnavailable."""
    config = alembic.config.Config()
    config.set_main_option("script_location", "forebay_billing:migrations")
    config.set_main_option("path_separator", "os")
    with writing(engines) as connection:
        config.attributes["connection"] = connection
        try:
            alembic.command.upgrade(config, "head")
        except alembic.util.CommandError as error:
            raise SettingsError(OTHER_RELEASE.format(service="billing", error=error)) from None
