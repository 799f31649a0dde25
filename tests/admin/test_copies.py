"""Back-ups with settings and homes, and copies of them elsewhere: by the real tar, rclone and restic, into folders."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from forebay.toolkit.command import main

TIMES = [1_700_000_000.0 + number for number in range(4)]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state with databases, a home and settings."""
    monkeypatch.setenv("FOREBAY_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("pool/pool.sqlite", "billing/billing.sqlite3"):
        (tmp_path / "state" / name).parent.mkdir(parents=True)
        with sqlite3.connect(tmp_path / "state" / name) as connection:
            connection.executescript("CREATE TABLE lease_segments (id); CREATE TABLE usage_outbox (segment)")
    home = tmp_path / "state" / "homes" / "ada"
    home.mkdir(parents=True)
    (home / "a b\n.ipynb").write_text("work")
    (home / "link").symlink_to("/etc/passwd")
    if os.getuid() == 0:
        os.chown(home / "a b\n.ipynb", 60_777, 60_777)
    secrets = tmp_path / "etc" / "secrets"
    secrets.mkdir(parents=True, mode=0o700)
    (secrets / "hub.env").write_text("FOREBAY_HUB_METRICS_TOKEN='x'\n")
    (secrets / "hub.env").chmod(0o600)
    return tmp_path


def back_up(host: Path, *more: str) -> int:
    return main(["admin", "backup", str(host / "backups"), "--dated", "--settings", str(host / "etc"), *more])


def at(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("forebay_admin.backup.time.time", lambda: seconds)


def test_settings_and_homes_are_put_back_with_modes_owners_and_links(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert back_up(host, "--with", "settings,homes") == 0
    (copy,) = (host / "backups").iterdir()
    assert {stat.S_IMODE(path.stat().st_mode) for path in copy.glob("*.tar.gz")} == {0o600}, "secrets are in it"
    before = {path.relative_to(host): path.lstat() for part in ("etc", "state/homes") for path in (host / part).rglob("*")}
    shutil.rmtree(host / "etc")
    shutil.rmtree(host / "state" / "homes")
    words = ["admin", "restore", str(host / "backups"), "--newest", "--settings", str(host / "etc")]
    assert main([*words, "--only", "settings"]) == 0
    assert not (host / "state" / "homes").exists()
    assert main([*words, "--replace", "--with", "homes"]) == 0
    after = {path.relative_to(host): path.lstat() for part in ("etc", "state/homes") for path in (host / part).rglob("*")}
    assert before.keys() == after.keys() and len(after) == 5
    for path, was in before.items():
        assert (after[path].st_mode, after[path].st_uid, after[path].st_gid) == (was.st_mode, was.st_uid, was.st_gid), path
    assert (host / "state" / "homes" / "ada" / "a b\n.ipynb").read_text() == "work"


def test_nothing_is_unpacked_over_what_is_there_unless_that_is_said(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert back_up(host, "--with", "settings") == 0
    (host / "etc" / "secrets" / "hub.env").write_text("newer")
    words = ["admin", "restore", str(host / "backups"), "--newest", "--settings", str(host / "etc"), "--only", "settings"]
    assert main(words) == 1
    assert "is not empty; add --replace" in capsys.readouterr().err
    assert (host / "etc" / "secrets" / "hub.env").read_text() == "newer"
    assert main([*words, "--replace"]) == 0 and (host / "etc" / "secrets" / "hub.env").read_text() != "newer"


def test_an_archive_that_was_changed_is_not_unpacked(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert back_up(host, "--with", "homes") == 0
    (archive,) = (host / "backups").glob("*/homes.tar.gz")
    archive.write_bytes(archive.read_bytes()[:-1])
    shutil.rmtree(host / "state" / "homes")
    assert main(["admin", "restore", str(host / "backups"), "--newest", "--only", "homes"]) == 1
    assert "checksum differs" in capsys.readouterr().err and not (host / "state" / "homes").exists()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--with", "settings,keys"], "keys is no part of a back-up"),
        (["--to", "s3:bucket"], "is no target; give rclone:"),
        (["--to", "rclone:"], "is no target"),
        (["--only", "homes"], "--with homes"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_copied(
    host: Path, capsys: pytest.CaptureFixture[str], more: list[str], sentence: str
) -> None:
    assert back_up(host, *more) == 1
    assert sentence in capsys.readouterr().err and not (host / "backups").exists()


def test_a_program_that_is_missing_is_named_before_anything_is_copied(
    host: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(host))
    assert back_up(host, "--to", "rclone:s3:bucket") == 1
    assert "rclone is not installed" in capsys.readouterr().err and not (host / "backups").exists()


def test_a_back_up_without_an_archive_says_so(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert back_up(host) == 0
    assert main(["admin", "restore", str(host / "backups"), "--newest", "--only", "homes", "--replace"]) == 1
    assert "holds no homes" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed")
def test_rclone_has_the_newest_and_can_bring_them_back(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = host / "away"
    (away / "somebody else's").mkdir(parents=True)
    for seconds in TIMES:
        at(monkeypatch, seconds)
        assert back_up(host, "--with", "homes", "--keep", "2", "--to", f"rclone:{away}") == 0
    here, there = ({path.name for path in folder.iterdir()} for folder in (host / "backups", away))
    assert here == {"2023-11-14T221322Z", "2023-11-14T221323Z"} and there == here | {"somebody else's"}
    shutil.rmtree(host / "backups")
    subprocess.run(["rclone", "copy", "--quiet", away, host / "backups"], check=True)
    shutil.rmtree(host / "state")
    assert main(["admin", "restore", str(host / "backups"), "--newest", "--with", "homes"]) == 0
    assert (host / "state" / "pool" / "pool.sqlite").exists() and (host / "state" / "homes" / "ada").is_dir()


@pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed")
def test_a_copy_that_fails_fails_the_command_and_leaves_the_one_here(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (host / "file").write_text("no folder")
    assert back_up(host, "--to", f"rclone:{host}/file") == 1
    assert "rclone failed" in capsys.readouterr().err and list((host / "backups").glob("*/manifest.json"))


@pytest.fixture
def repository(host: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("RESTIC_PASSWORD", "secret")
    subprocess.run(["restic", "init", "--quiet", "--repo", host / "repository"], check=True)
    yield host / "repository"


@pytest.mark.skipif(shutil.which("restic") is None, reason="restic is not installed")
def test_restic_has_the_newest_and_can_bring_them_back(host: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in TIMES[:3]:
        at(monkeypatch, seconds)
        assert back_up(host, "--keep", "2", "--to", f"restic:{repository}") == 0
    words = ["restic", "snapshots", "--quiet", "--compact", "--repo", repository]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.count("forebay") == 2
    shutil.rmtree(host / "backups")
    subprocess.run(["restic", "--quiet", "--repo", repository, "restore", "latest", "--target", "/"], check=True)
    shutil.rmtree(host / "state" / "pool")
    assert main(["admin", "restore", str(host / "backups"), "--newest", "--only", "pool"]) == 0
    assert (host / "state" / "pool" / "pool.sqlite").exists()
