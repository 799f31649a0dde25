"""``forebay admin flavors suggest`` against a real pool: what it shows, what it makes, and how lists of many ways are shown."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forebay.service import Service as Client
from forebay.toolkit import pool as toolkit_pool
from forebay.toolkit.command import main
from forebay.toolkit.smi import served_by
from forebay_pool.model.events import PricesSet
from forebay_pool.model.prices import Tariff
from forebay_pool.service import Service
from forebay_pool.settings import Settings
from forebay_service.identity import COMPUTE, OPERATE, Identity, TokenAuthenticator

PEOPLE = {
    "ada": Identity("ada", "user", "acme", frozenset({COMPUTE})),
    "operator": Identity("olga", "user", None, frozenset({OPERATE})),
}
DEVICES = [{"kind": "cuda", "model": "H100", "memory": "81559 MiB", "count": 2}]
SUGGESTED = ["3xsmall.10gb", "2xsmall.20gb", "xsmall.40gb", "small.80gb", "medium.160gb"]
SECONDS_MAX = 20.0
Run = Callable[..., tuple[int, str, str]]


class Pool:
    """A pool in a thread, on a host with two accelerators; nobody computes there."""

    def __init__(self, folder: Path) -> None:
        values = {"port": 0, "state_dir": folder, "devices": DEVICES, "warm_workers": 0}
        self.service = Service(Settings.load(None, {}, values, managed=False), TokenAuthenticator(PEOPLE), os.environ)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._do(self.service.start())

    def _do(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS_MAX)

    def price(self, **prices: int) -> None:
        """As if billing had told them, in US dollars."""

        async def tell() -> None:
            book = {(name.replace("_", ".", 1), "USD"): nano for name, nano in prices.items()}
            self.service.shell.apply(PricesSet(Tariff(book, {}, "USD", {})))

        self._do(tell())

    def close(self) -> None:
        self._do(self.service.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    running = Pool(tmp_path)
    yield running
    running.close()


@pytest.fixture
def admin(pool: Pool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``forebay admin``; returns status, output and errors."""

    def run(*words: str, who: str = "operator") -> tuple[int, str, str]:
        monkeypatch.setenv("FOREBAY_URL", pool.service.url)
        monkeypatch.setenv("FOREBAY_TOKEN", who)
        status = main(["admin", *words])
        return status, *capsys.readouterr()

    return run


def table(out: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("|")][1:]


def audited(admin: Run, pool: Pool) -> list[str]:
    entries = Client(pool.service.url, "operator").get("api/audit?action=flavor.set")["entries"]
    assert {entry["who"] for entry in entries} <= {"olga"}
    return [entry["subject"] for entry in reversed(entries)]


def test_what_the_devices_could_serve_is_shown_and_nothing_is_made(admin: Run, pool: Pool) -> None:
    pool.price(small_64gb=2 * 10**9)
    status, out, err = admin("flavors", "suggest")
    assert (status, err, [row[0] for row in table(out)]) == (0, "", SUGGESTED)
    assert table(out)[3] == ["small.80gb", "81,559 MiB", "1 x H100", "new", "2.49 USD/h, as small.64gb"]
    assert table(out)[1][2] == "0.25 x H100"
    assert "Nothing is made yet" in out and "A new flavor is not billed until it has a price" in out
    rows = json.loads(admin("flavors", "suggest", "--json")[1])
    assert [row["name"] for row in rows] == SUGGESTED and rows[3]["proposed_nano_per_hour"] == 2_490_000_000
    assert audited(admin, pool) == []


def test_one_is_made_by_its_name_and_then_the_rest_with_one_entry_of_the_audit_each(admin: Run, pool: Pool) -> None:
    pool.price(small_64gb=2 * 10**9)
    status, out, _ = admin("flavors", "suggest", "small.80gb", "--apply")
    made = ["small.80gb", "81,559 MiB", "no price in USD", "1 x H100", "-", "process", "torch, xla, exec", "-"]
    assert (status, table(out)) == (0, [made])
    assert out.endswith("\n  forebay admin prices set small.80gb --per-hour 2.49 --currency USD --new\n")
    assert [row[0] for row in table(admin("flavors", "suggest")[1])] == [name for name in SUGGESTED if name != "small.80gb"]
    rows = json.loads(admin("flavors", "suggest", "--apply", "--json")[1])
    assert [(row["name"], row["servable"]) for row in rows] == [(name, True) for name in SUGGESTED if name != "small.80gb"]
    assert audited(admin, pool) == ["small.80gb", *(row["name"] for row in rows)]
    done = "The devices that are here have their flavors: there is nothing to suggest.\n"
    assert admin("flavors", "suggest") == (0, done, "") == admin("flavors", "suggest", "--apply")


def test_a_default_flavor_of_before_gets_what_it_lacks(admin: Run, pool: Pool) -> None:
    assert admin("flavors", "set", "small.64gb", "--memory", "65520MiB", "--served-by", "1*MI210", "--residents-max", "2")[0] == 0
    assert table(admin("flavors", "suggest", "small.64gb")[1])[0][2:] == ["1 x H100", "is there: more serves it", "-"]
    (row,) = json.loads(admin("flavors", "suggest", "small.64gb", "--apply", "--json")[1])
    assert [one["model"] for one in row["equivalents"]] == ["MI210", "H100"] and row["residents_max"] == 2 and row["servable"]


def test_what_is_not_suggested_is_not_made(admin: Run, pool: Pool) -> None:
    error = "forebay: No flavor 'huge' is suggested; `forebay admin flavors suggest` shows all that are.\n"
    assert admin("flavors", "suggest", "small.80gb", "huge", "--apply") == (1, "", error)
    assert audited(admin, pool) == []


def test_a_flavor_that_somebody_else_made_meanwhile_stays_as_it_is(admin: Run, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    read = toolkit_pool.rows

    def overtaken(service: Client, path: str) -> Any:
        """What was suggested, just before somebody else makes one of them."""
        rows = read(service, path)
        Client(pool.service.url, "operator").put("api/flavors/xsmall.40gb", {"memory_bytes": 2**30, "equivalents": [{"model": "MI210"}]})
        return rows

    monkeypatch.setattr(toolkit_pool, "rows", overtaken)
    status, out, err = admin("flavors", "suggest", "--apply")
    assert (status, out) == (1, "") and "changed" in err
    monkeypatch.undo()
    flavors = {row["name"]: row for row in Client(pool.service.url, "operator").get("api/flavors")}
    assert flavors["xsmall.40gb"]["memory_bytes"] == 2**30 and "2xsmall.20gb" in flavors and "small.80gb" not in flavors


def test_operators_alone_are_told(admin: Run) -> None:
    assert admin("flavors", "suggest", who="ada") == (1, "", "forebay: ada needs the scope custom:forebay:operate.\n")


def test_of_many_ways_to_serve_a_flavor_those_are_shown_that_are_here(admin: Run, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row[0]: row for row in table(admin("flavors", "list")[1])}
    assert rows["small.64gb"][3] == "1 x H100 or 19 others" and rows["dev.1gb"][3] == "1 x cpu-dev or 1 x null"
    ways = [{"model": f"m{number}", "count": number} for number in range(1, 6)]
    assert served_by({"equivalents": ways}) == "1 x m1 or 2 x m2 or 3 x m3 or 2 others"
    assert served_by({"equivalents": ways[:3]}) == "1 x m1 or 2 x m2 or 3 x m3" and served_by({}) == "-"
