"""The page on a new control host, played: one is used, backed up elsewhere and lost; the page's commands are typed on an empty one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(CHECKOUT / "tests" / "packages"), str(CHECKOUT / "deploy" / "packages")]

from service_host import PAGE, RunnerHost, blocks  # noqa: E402 - lies in a folder that was just added

RESTORE = CHECKOUT / "docs" / "operators" / "restore.md"
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.full_sweep,
    pytest.mark.skipif(os.getuid() != 0, reason="the units' users need root"),
    pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="Debian's systemd is not installed"),
    pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed"),
]


@pytest.fixture
def host(passable: Any, free_port: Callable[[], int]) -> Iterator[RunnerHost]:
    """One whose back-ups go elsewhere, as the page's answers have it."""
    folder = passable.folder / "lost"
    folder.mkdir()
    made = RunnerHost(folder, passable.prefix, free_port(), installed=True)
    with (made.release / "answers.toml").open("a") as answers:
        answers.write(here(blocks("toml", RESTORE), folder))
    for line in blocks("sh", PAGE).splitlines():
        if not any(word in line for word in ("sha256sum", " -m venv ", "/pip ")):
            made.type(line)
    made.wait()
    yield made
    made.runner.stop()


def here(text: str, folder: Path) -> str:
    """What the page says, with a folder in place of its bucket."""
    return text.replace("s3:bucket/forebay", str(folder / "elsewhere"))


def signed_in(host: RunnerHost, person_type: Any, password: str, monkeypatch: pytest.MonkeyPatch) -> httpx.Client:
    monkeypatch.setenv("SSL_CERT_FILE", str(host.authority))
    web = httpx.Client(base_url=host.url, follow_redirects=True, timeout=60)
    assert person_type("acme-owner", web).sign_in(password).status_code == httpx.codes.OK
    return web


def rows(host: RunnerHost, table: str) -> list[tuple[Any, ...]]:
    """Of billing's books."""
    with contextlib.closing(sqlite3.connect(host.state / "billing" / "billing.sqlite3")) as books:
        return sorted(books.execute(f"SELECT * FROM {table}"), key=repr)  # noqa: S608 - the test's own word


@pytest.mark.timeout(600)
def test_a_new_host_has_the_people_the_books_and_the_homes_of_the_one_that_is_lost(
    host: RunnerHost, person_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = json.loads((host.state / "hub" / "logins.json").read_text())["acme-owner"]
    signed_in(host, person_type, password, monkeypatch).close()
    home = host.state / "homes" / "acme-owner"
    home.mkdir(exist_ok=True)
    (home / "work.ipynb").write_text("mine")
    os.chown(home / "work.ipynb", 61_234, 61_234)
    authority = host.authority.read_bytes()
    secrets = (host.root / "etc" / "forebay" / "secrets" / "hub.env").read_bytes()
    assert host.runner.run("forebay-backup.service") == 0, host.log()
    host.runner.stop()
    prices = rows(host, "prices")
    shutil.rmtree(host.root)

    for line in blocks("sh", RESTORE).splitlines():
        host.type(here(line, host.folder).replace("--only settings", f"--only settings --settings {host.root}/etc/forebay"))
    host.wait()
    assert host.authority.read_bytes() == authority, "browsers know it as before"
    assert (host.root / "etc" / "forebay" / "secrets" / "hub.env").read_bytes() == secrets
    signed_in(host, person_type, password, monkeypatch).close()
    assert prices and rows(host, "prices") == prices, "with the moment since when they hold, which is that of the first start"
    work = home / "work.ipynb"
    assert (work.read_text(), work.stat().st_uid) == ("mine", 61_234)
    owners = {name: (host.state / name).stat().st_uid for name in ("pool/pool.sqlite", "billing/billing.sqlite3")}
    assert owners == {"pool/pool.sqlite": host.uid("forebay-pool"), "billing/billing.sqlite3": host.uid("forebay-billing")}
    assert host.runner.run("forebay-backup.service") == 0, "and is backed up again"
