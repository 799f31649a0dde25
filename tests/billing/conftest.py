"""Real databases and a real service on loopback for the tests of billing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forebay_billing.ledger.books import Books
from forebay_billing.model.types import Span, UsageRecord
from forebay_billing.settings import Settings
from forebay_billing.tables.engines import Engines, migrate, open_engines, writing
from forebay_billing.writes.prices import seed
from running_billing import CALLERS, NOVEMBER, NOW_NS, Clock, Running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def usage() -> Callable[..., UsageRecord]:
    """Makes a usage record; what is not given is plausible."""

    def make(id: str = "lease-1/1", **changes: Any) -> UsageRecord:
        record = UsageRecord(
            source="pool",
            id=id,
            tenant="acme",
            user="acme-member",
            session="session-1",
            lease=id.partition("/")[0],
            span=Span("span-1", "cell", "digits.ipynb", 3),
            flavor="small.64gb",
            device_model="cpu-dev",
            devices=1,
            started_at_ns=NOVEMBER.start_ns + 3600 * 10**9,
            duration_ns=60 * 10**9,
            close_reason="drained",
        )
        return replace(record, **changes)

    return make


def make_schema(url: str) -> None:
    engines = open_engines(url, 1)
    migrate(engines)
    engines.dispose()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite database with the schema alone, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "billing.sqlite3"
    make_schema(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_database(new_postgres_database: Callable[..., str]) -> str:
    """The name of a PostgreSQL database with the schema alone, to be copied."""
    name = "forebay_migrated"
    make_schema(new_postgres_database(name))
    return name


@pytest.fixture
def migrated_postgres_url(new_postgres_database: Callable[..., str], migrated_database: str) -> str:
    return new_postgres_database(template=migrated_database)


@pytest.fixture(params=["sqlite", "postgresql"])
def migrated_url(request: pytest.FixtureRequest, tmp_path: Path, migrated_file: Path) -> str:
    """A database of each kind that is supported, with the schema alone: migrations take seconds, and a copy does not."""
    if request.param == "sqlite":
        return f"sqlite:///{shutil.copy(migrated_file, tmp_path / 'forebay.sqlite3')}"
    url: str = request.getfixturevalue("migrated_postgres_url")
    return url


@pytest.fixture(scope="session")
def seeded_file(migrated_file: Path) -> Path:
    """An SQLite database with schema and seeds, to be copied."""
    path = Path(shutil.copy(migrated_file, migrated_file.with_name("seeded.sqlite3")))
    engines = open_engines(f"sqlite:///{path}", 1)
    with writing(engines) as connection:
        seed(Books(connection), NOW_NS)
    engines.dispose()
    return path


@pytest.fixture(scope="session")
def fresh_books(seeded_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Any]:
    """A context manager of seeded SQLite books, as often as wanted. Files that are free get the next books: their engines know statements
    that were compiled before, which is half of the work."""
    folder = tmp_path_factory.mktemp("books")
    free: list[tuple[Path, Engines]] = []

    @contextmanager
    def open_copy() -> Iterator[Engines]:
        if not free:
            path = Path(tempfile.mkdtemp(dir=folder)) / "billing.sqlite3"
            free.append((path, open_engines(f"sqlite:///{path}", 1)))
        path, engines = free.pop()
        shutil.copy(seeded_file, path)
        try:
            yield engines
        finally:
            engines.dispose()
            for left in path.parent.iterdir():
                left.unlink()
            free.append((path, engines))

    return open_copy


@pytest.fixture(scope="session")
def make_settings(migrated_file: Path) -> Callable[[Path], Settings]:
    """Of a service on SQLite, which has the schema already, in this folder."""

    def make(folder: Path) -> Settings:
        return Settings(
            database_url=f"sqlite:///{shutil.copy(migrated_file, folder / 'billing.sqlite3')}",
            port=0,
            tokens=tuple(CALLERS.values()),
            tenant_currencies={"tokyo": "JPY"},
            busy_seconds=0.2,
        )

    return make


@pytest.fixture
def settings(make_settings: Callable[[Path], Settings], tmp_path: Path) -> Settings:
    """Of the test's service on SQLite."""
    return make_settings(tmp_path)


@pytest.fixture
def running(settings: Settings, clock: Clock) -> Iterator[Running]:
    """The service on SQLite."""
    service = Running(settings, clock)
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture
def running_anywhere(settings: Settings, clock: Clock, migrated_url: str) -> Iterator[Running]:
    """The service on each kind of database."""
    service = Running(settings.model_copy(update={"database_url": migrated_url, "busy_seconds": 2.0}), clock)
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture(scope="session")
def running_service() -> type[Running]:
    """For tests that run a service of their own."""
    return Running
