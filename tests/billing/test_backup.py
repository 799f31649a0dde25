"""``forebay admin backup`` and ``restore`` with data, on both kinds of database: the books agree, and every record is billed once."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forebay.toolkit.command import main
from forebay_admin.backup import BackupError, back_up, database_of, restore
from forebay_billing.model.types import UsageRecord
from forebay_pool.model.snapshot import SessionSnapshot
from forebay_pool.model.types import UsageRecord as Metered
from forebay_pool.store.batch import Batch
from forebay_pool.store.database import Store as PoolStore
from forebay_wire import messages as wire
from running_billing import Running
from sqlalchemy import inspect

Usage = Callable[..., UsageRecord]


@pytest.fixture
def postgres_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if found:
        monkeypatch.setenv("PATH", f"{found[-1]}:{Path(shutil.which('true') or '/bin/true').parent}")


@pytest.fixture
def pool(tmp_path: Path) -> Any:
    """A pool's database, and its URL."""
    store = PoolStore(f"sqlite:///{tmp_path}/pool.sqlite")
    store.migrate()
    yield store
    store.close()


def metered(record: UsageRecord) -> Metered:
    span = wire.Span(id=record.span.id, kind="cell", label=record.span.label, cell=record.span.cell)
    shared = ("id", "tenant", "user", "session", "lease", "flavor", "device_model", "devices", "duration_ns")
    values = {name: getattr(record, name) for name in shared}
    return Metered(**values, span=span, started_at_unix_ns=record.started_at_ns, close_reason="drained")


def deliver(pool: PoolStore, running: Running) -> dict[str, int]:
    """What the pool's outbox does."""
    rows = pool.undelivered("pool", 1000)
    answer: dict[str, int] = running.request("pool", "POST", "/api/usage", json={"records": [row.payload for row in rows]}).json()
    pool.delivered([row.seq for row in rows])
    return answer


def test_restored_books_agree_and_take_what_came_since_once(
    running_anywhere: Running, pool: PoolStore, usage: Usage, tmp_path: Path,
    postgres_programs: None, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    arguments = ["--pool", f"sqlite:///{tmp_path}/pool.sqlite", "--billing", running_anywhere.settings.database_url]
    before = [usage(f"lease-{number}/1") for number in range(20)]
    pool.write(Batch(records=[metered(record) for record in before]), deliver=True)
    assert deliver(pool, running_anywhere) == {"accepted": 20, "duplicates": 0}
    stop = threading.Event()

    def write_on() -> None:
        number = 0
        while not stop.is_set():
            running_anywhere.post_usage(usage(f"meanwhile-{number}/1", source="another"))
            number += 1

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        assert main(["admin", "backup", str(tmp_path / "copy"), *arguments]) == 0
    finally:
        stop.set()
        writer.join()
    pool.write(Batch(records=[metered(usage("since/1"))]), deliver=True)
    assert deliver(pool, running_anywhere) == {"accepted": 1, "duplicates": 0}
    settings, clock = running_anywhere.settings, running_anywhere.clock
    running_anywhere.stop()
    try:
        assert main(["admin", "restore", str(tmp_path / "copy"), "--replace", "--only", "billing", *arguments]) == 0
        capsys.readouterr()
    finally:
        running_anywhere.__init__(settings, clock)  # the fixture stops it again
    assert running_anywhere.get("operator", "/api/check").json() == {"differences": []}
    names = {record["id"] for record in running_anywhere.get("operator", "/api/usage", limit=1000).json()["records"]}
    assert {record.id for record in before} <= names and "since/1" not in names
    assert deliver(pool, running_anywhere) == {"accepted": 1, "duplicates": 20}
    assert deliver(pool, running_anywhere) == {"accepted": 0, "duplicates": 0}
    assert running_anywhere.get("operator", "/api/check").json() == {"differences": []}


def test_the_pools_own_database_goes_back_and_the_pool_goes_on(
    database_url: str, usage: Usage, tmp_path: Path, postgres_programs: None
) -> None:
    """On both kinds of database: what was open and not delivered is again, what came later is not, and numbers go on."""
    store, span = PoolStore(database_url), wire.Span(id="s", kind="cell", label="a.ipynb", cell=1)
    store.migrate()
    epoch = store.lead("http://here")
    session = SessionSnapshot("open", bytes(32), "acme", "ada", "x", "dev.1gb", 1, 1, span, None, False, 0, None, 0, None)
    store.write(Batch(records=[metered(usage("before/1"))], sessions={"open": session}), deliver=True)
    assert main(["admin", "backup", str(tmp_path / "copy"), "--only", "pool", "--pool", database_url]) == 0
    store.write(Batch(records=[metered(usage("after/1"))], sessions={"open": None}), deliver=True)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE of_a_later_release (segment varchar REFERENCES lease_segments)")
    store.close()
    assert main(["admin", "restore", str(tmp_path / "copy"), "--replace", "--only", "pool", "--pool", database_url]) == 0
    store = PoolStore(database_url)
    try:
        store.migrate()
        assert not inspect(store.engine).has_table("of_a_later_release"), "the next upgrade makes it"
        assert store.kept().sessions == (session,)
        assert [row.payload["id"] for row in store.undelivered("pool", 10)] == ["before/1"]
        assert store.lead("http://there") == epoch + 1
        store.write(Batch(records=[metered(usage("later/1"))], sessions={"open": None}), deliver=True)
        assert [row.payload["id"] for row in store.undelivered("pool", 10)] == ["before/1", "later/1"]
        assert store.kept().sessions == ()
    finally:
        store.close()


def test_pool_and_billing_go_back_together(running: Running, pool: PoolStore, usage: Usage, tmp_path: Path) -> None:
    """The pool's copy is the older one: what it had not delivered then, billing may have by its own copy."""
    databases = [database_of("billing", running.settings.database_url, {}), database_of("pool", f"sqlite:///{tmp_path}/pool.sqlite", {})]
    pool.write(Batch(records=[metered(usage("a/1"))]), deliver=True)
    manifest = back_up(databases, tmp_path / "copy")
    assert list(manifest["databases"]) == ["pool", "billing"]  # type: ignore[call-overload]
    targets = [database_of("pool", f"sqlite:///{tmp_path}/new/pool.sqlite", {}), database_of("billing", f"sqlite:///{tmp_path}/new/b", {})]
    restore(targets, tmp_path / "copy", replace=False)
    with sqlite3.connect(tmp_path / "new" / "pool.sqlite") as connection:
        assert connection.execute("SELECT segment FROM usage_outbox").fetchall() == [("a/1",)]
    assert (tmp_path / "new" / "b").stat().st_mode & 0o077 == 0


@pytest.fixture(params=["", "hub"], ids=["make up", "forebay admin init"])
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """An installation's folder, with a hub in it, or in a folder of its own, beside empty databases of pool and billing."""
    state = tmp_path / "state"
    monkeypatch.setenv("FOREBAY_STATE", str(state))
    for name in ("pool/pool.sqlite", "billing/billing.sqlite3", Path(request.param, "hub.sqlite")):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        with sqlite3.connect(state / name) as connection:
            connection.executescript("CREATE TABLE lease_segments (id); CREATE TABLE usage_outbox (segment); CREATE TABLE people (name)")
    (state / request.param / "uids.json").write_text('{"ada": 60710}')
    (state / request.param / "logins.json").write_text('{"ada": "first"}')
    return state


def people_of(hub: Path) -> list[tuple[str]]:
    with sqlite3.connect(hub / "hub.sqlite") as connection:
        return connection.execute("SELECT name FROM people").fetchall()


def test_the_hub_goes_back_with_its_people_and_their_accounts(state: Path, tmp_path: Path) -> None:
    hub = next(state.rglob("hub.sqlite")).parent
    with sqlite3.connect(hub / "hub.sqlite") as connection:
        connection.execute("INSERT INTO people VALUES ('ada')")
    assert main(["admin", "backup", str(tmp_path / "copy")]) == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "copy").iterdir() if path.name != "manifest.json")
    (hub / "uids.json").write_text("{}")
    if os.geteuid() == 0:
        os.chown(hub / "uids.json", 60710, 60710)
    with sqlite3.connect(hub / "hub.sqlite") as connection:
        connection.execute("DELETE FROM people")
    assert main(["admin", "restore", str(tmp_path / "copy")]) == 1 and people_of(hub) == []
    assert main(["admin", "restore", str(tmp_path / "copy"), "--only", "hub", "--replace"]) == 0
    assert people_of(hub) == [("ada",)] and (hub / "uids.json").read_text() == '{"ada": 60710}'
    assert os.geteuid() != 0 or (hub / "uids.json").stat().st_uid == 60710, "for whom it was before"
    (tmp_path / "copy" / "logins.json").write_text("{}")
    (hub / "uids.json").unlink()
    assert main(["admin", "restore", str(tmp_path / "copy"), "--replace"]) == 1
    assert not (hub / "uids.json").exists(), "nothing is put back of what is damaged in part"


def test_a_copy_that_does_not_fit_leaves_all_of_what_was_there(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    assert main(["admin", "backup", str(tmp_path / "copy")]) == 0
    log = state / "pool" / "pool.sqlite-wal"
    log.write_bytes(b"written, and not yet in the database")
    monkeypatch.setattr("forebay_admin.backup.shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        restore([database_of("pool", None, os.environ)], tmp_path / "copy", replace=True)
    assert log.exists()


def test_a_host_without_a_hub_and_a_copy_without_one_have_the_other_two(state: Path, tmp_path: Path) -> None:
    hub = next(state.rglob("hub.sqlite")).parent
    for name in ("hub.sqlite", "uids.json", "logins.json"):
        (hub / name).unlink()
    assert main(["admin", "backup", str(tmp_path / "copy")]) == 0
    assert main(["admin", "backup", str(tmp_path / "hub"), "--only", "hub"]) == 1
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["billing.sqlite3", "manifest.json", "pool.sqlite3"]
    assert main(["admin", "restore", str(tmp_path / "copy"), "--replace"]) == 0 and not (hub / "hub.sqlite").exists()
    assert main(["admin", "restore", str(tmp_path / "copy"), "--replace", "--only", "hub"]) == 1


def test_what_is_wrong_with_a_backup_is_said_and_nothing_is_replaced(pool: PoolStore, tmp_path: Path) -> None:
    database = database_of("pool", f"sqlite:///{tmp_path}/pool.sqlite", {})
    copy = tmp_path / "copy"
    back_up([database], copy)
    with pytest.raises(BackupError, match="is not empty"):
        back_up([database], copy)
    with pytest.raises(BackupError, match="add --replace"):
        restore([database], copy, replace=False)
    with pytest.raises(BackupError, match="holds no copy of billing"):
        restore([database_of("billing", f"sqlite:///{tmp_path}/b", {})], copy, replace=True)
    with pytest.raises(BackupError, match="cannot be put into postgresql"):
        restore([database_of("pool", "postgresql://x@/y", {})], copy, replace=True)
    with pytest.raises(BackupError, match="'mysql' is no database of ours"):
        database_of("pool", "mysql://x", {})
    with pytest.raises(BackupError, match="There is no database"):
        back_up([database_of("billing", None, {"FOREBAY_STATE": str(tmp_path / "nowhere")})], tmp_path / "other")
    (copy / "pool.sqlite3").write_bytes(b"SQLite format 3\0 and more")
    with pytest.raises(BackupError, match="is not what was copied"):
        restore([database], copy, replace=True)
    (copy / "manifest.json").unlink()
    with pytest.raises(BackupError, match="holds no whole backup"):
        restore([database], copy, replace=True)
    assert pool.undelivered("pool", 1) == []
