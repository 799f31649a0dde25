"""``forebay admin upgrade`` and ``rollback``: what is checked before anything is changed, and what a rollback would lose.

That a host is upgraded and goes back is shown by ``tests/acceptance/test_upgrade.py``, packages by ``tests/packages/test_exchange.py``.
"""

from __future__ import annotations

import hashlib
import os
from importlib.resources import files
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from forebay.toolkit.command import main
from forebay_admin.host import upgrade
from forebay_admin.host.answers import Answers
from forebay_admin.host.exchange import Host, UpgradeError, UpgradeState
from forebay_admin.host.layout import Layout
from forebay_admin.host.records import counts
from forebay_admin.host.upgrade import ReleaseFolder
from forebay_billing.tables import invoices
from forebay_pool.store.audit import AuditEntry, append
from forebay_pool.store.database import Store
from forebay_pool.store.tables import METADATA as POOL
from jupyterhub.orm import Base
from sqlalchemy import create_engine, text

BEFORE = str(ScriptDirectory(str(files("forebay_pool.migrations"))).get_current_head())
"""The newest schema there is."""
LATER = "9999"
"""That of a later release, which has a table more."""
ENTRY = AuditEntry("operator", "device.set", "gpu/0", None, {"state": "cordoned"}, 1)


def release(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(name.encode())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in folder.iterdir()]
    (folder / "SHA256SUMS").write_text("".join(sums))
    return folder


def test_a_folder_that_holds_no_whole_release_is_refused(tmp_path: Path) -> None:
    whole = release(tmp_path / "whole", "forebay-0.2.0-py3-none-any.whl", "forebay_pool-0.2.0-py3-none-any.whl")
    found = ReleaseFolder.read(whole)
    assert found.version == "0.2.0" and found.wheels.keys() == {"forebay", "forebay-pool"}
    (whole / "forebay_pool-0.2.0-py3-none-any.whl").write_bytes(b"other bytes")
    cases = {
        whole: "forebay_pool-0.2.0-py3-none-any.whl is not what SHA256SUMS says",
        release(tmp_path / "empty"): "no wheels of one release (none are there)",
        release(tmp_path / "two", "forebay-0.2.0-py3-none-any.whl", "forebay_pool-0.1.0-py3-none-any.whl"): "(0.1.0, 0.2.0)",
    }
    for folder, sentence in cases.items():
        with pytest.raises(UpgradeError) as refused:
            ReleaseFolder.read(folder)
        assert sentence in str(refused.value)
    (tmp_path / "two" / "forebay_pool-0.1.0-py3-none-any.whl").unlink()
    (tmp_path / "two" / "SHA256SUMS").unlink()
    with pytest.raises(UpgradeError, match="has no SHA256SUMS"):
        ReleaseFolder.read(tmp_path / "two")


def test_a_host_that_init_has_not_made_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert main(["admin", "rollback", "--root", str(tmp_path)]) == 1
    assert "`forebay admin init` has made no installation here" in capsys.readouterr().err
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["admin", "rollback", "--root", str(tmp_path)]) == 1
    assert "run this as root" in capsys.readouterr().err


def bring(url: str, revision: str) -> None:
    """The pool's database to an earlier schema than today's."""
    engine = create_engine(url)
    config = Config()
    config.set_main_option("script_location", "forebay_pool:migrations")
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


@pytest.fixture
def host(tmp_path: Path, database_url: str) -> Host:
    """A host whose pool has the schema of before, and whose other databases are empty."""
    bring(database_url, BEFORE)
    host = Host(Layout(tmp_path), Answers("localhost"), {"FOREBAY_STATE": str(tmp_path), "FOREBAY_POOL_DATABASE_URL": database_url})
    for name in ("hub/hub.sqlite", "billing/billing.sqlite3"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    host.folder.mkdir(parents=True)
    return host


def test_a_rollback_knows_what_it_would_lose(host: Host, database_url: str) -> None:
    store = Store(database_url)
    before = counts(host.databases)
    kept = UpgradeState("0.1.0", "0.2.0", before, ["/etc/systemd/system/forebay-new.service"])
    kept.write(host.state)
    assert UpgradeState.read(host.state) == kept and before["pool"].revision == BEFORE and before["hub"].revision == ""
    bring(database_url, BEFORE)
    with store.engine.begin() as connection:  # schema as before: all of it may stay
        append(connection, ENTRY)
    upgrade._check_loss(host, kept, lose_records=False)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE later (id INTEGER PRIMARY KEY)")
        connection.execute(text("UPDATE alembic_version SET version_num = :later"), {"later": LATER})
    store.lead("")
    store.append_audit(ENTRY)
    with pytest.raises(UpgradeError, match=r"would be lost: 2 changes by operators\. Nothing is changed; --lose-records"):
        upgrade._check_loss(host, kept, lose_records=False)
    upgrade._check_loss(host, kept, lose_records=True)
    assert upgrade._changed(host, kept).keys() == {"pool"}
    now = upgrade._changed(host, kept)["pool"]
    assert now.revision == LATER
    assert now.rows == {"lease_segments": 0, "jobs": 0, "schedules": 0, "shared_notebooks": 0, "audit": 2}
    assert before["pool"].rows == {**now.rows, "audit": 0}
    store.close()


def test_a_unit_that_the_release_before_has_not_is_neither_stopped_nor_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed, waited = tmp_path / "typed", []
    for name in ("systemctl", "systemd-sysusers"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{typed}\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(Host, "_wait", lambda host, name: waited.append(name))
    host = Host(Layout(tmp_path / "root"), Answers("localhost"), {})
    host.layout.units.mkdir(parents=True)
    before = ["proxy", "hub", "billing", "pool", "dashboards"]
    for name in before:
        (host.layout.units / f"forebay-{name}.service").touch()
    host.stop()
    host.start()
    assert "forebay-edge" not in typed.read_text() and waited == before[1:]
    (host.layout.units / "forebay-edge.service").touch()
    host.stop()
    units = [f"forebay-{name}" for name in (*before, "edge")]
    assert typed.read_text().splitlines()[-1].split() == ["systemctl", "stop", "forebay.target", *units]
    host.start()
    assert waited[-1] == "edge"


def test_the_tables_that_are_counted_are_there() -> None:
    """Of pool and billing by their own tables; JupyterHub's are JupyterHub's."""
    for name, metadata in (("pool", POOL), ("billing", invoices.metadata), ("hub", Base.metadata)):
        assert upgrade.RECORDS[name].keys() <= metadata.tables.keys()
