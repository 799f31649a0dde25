"""``forebay admin`` against a real pool with real links and fake workers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forebay.toolkit.command import main
from forebay_pool.service import Service
from forebay_pool.settings import Settings
from forebay_service.identity import COMPUTE, OPERATE, Identity, TokenAuthenticator
from forebay_wire import messages as wire
from websockets.sync.client import ClientConnection, connect

FAKE_WORKER = Path(__file__).resolve().parents[1] / "pool" / "fake_worker.py"
PEOPLE = {
    "ada": Identity("ada", "user", "acme", frozenset({COMPUTE})),
    "operator": Identity("olga", "user", None, frozenset({OPERATE})),
}
SECONDS_MAX = 20.0
LISTS = {
    "nodes list": "node",
    "devices list": "device",
    "models list": "model",
    "flavors list": "name",
    "quotas list": "tenant",
    "sessions list": "session",
    "queue": "position",
    "forecast": "flavor",
}
"""The listings, and the field that their table's first column shows."""


class Pool:
    """A pool in a thread, with a session of ada's that holds its only device, and another that waits."""

    def __init__(self, service: Service) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._service = service
        self._links: list[ClientConnection] = []
        self._do(service.start())
        self.holder = self._session(wire.Granted)
        self.waiting = self._session(wire.Queued)

    def _do(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS_MAX)

    def _session(self, until: type[wire.Message]) -> str:
        url = self._service.url.replace("http", "ws", 1) + "api/session"
        link = connect(url, additional_headers={"Authorization": "token ada"}, compression=None, proxy=None)
        self._links.append(link)
        link.send(wire.Hello(process="python train.py", pid=1, torch="2.13.0").encode())
        opened = self._hears(link, wire.SessionOpened)
        link.send(wire.Acquire(request=1, span=wire.Span(id="span", kind="process", label="train.py")).encode())
        self._hears(link, until)
        return str(opened.session)

    @staticmethod
    def _hears(link: ClientConnection, kind: type[wire.Message]) -> Any:
        while not isinstance(message := wire.to_client(link.recv(SECONDS_MAX)), kind):
            pass
        return message

    @property
    def url(self) -> str:
        return self._service.url

    def close(self) -> None:
        for link in self._links:
            link.close()
        self._do(self._service.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    folder = tmp_path_factory.mktemp("pool")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE_WORKER} "$@"\n')
    python.chmod(0o700)
    group = {"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB", "switch": "leaf-1"}
    values = {"port": 0, "state_dir": folder / "state", "worker_python": python, "devices": [group], "revoke_grace_seconds": 0.2}
    running = Pool(Service(Settings.load(None, {}, values, managed=False), TokenAuthenticator(PEOPLE), os.environ))
    yield running
    running.close()


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def admin(pool: Pool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``forebay admin``; returns status, output and errors."""

    def run(*words: str, who: str = "operator") -> tuple[int, str, str]:
        monkeypatch.setenv("FOREBAY_URL", pool.url)
        monkeypatch.setenv("FOREBAY_TOKEN", who)
        status = main(["admin", *words])
        return status, *capsys.readouterr()

    return run


def table(out: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("|")][1:]


def answer(admin: Run, *words: str) -> Any:
    status, out, err = admin(*words, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("words", LISTS)
def test_every_listing_is_a_table_of_the_rows_that_json_has(admin: Run, words: str) -> None:
    assert admin("quotas", "set", "acme", "--devices", "2.5")[0] == 0
    status, out, err = admin(*words.split())
    assert (status, err) == (0, "")
    rows = answer(admin, *words.split())
    assert rows and [row[0] for row in table(out)] == [str(row[LISTS[words]]) for row in rows]


def test_a_node_is_drained_with_a_grace_and_undone(admin: Run) -> None:
    assert admin("nodes", "drain", "main", "--grace", "3600") == (0, "Node main gets no new lease.\n", "")
    assert table(admin("nodes", "list")[1]) == [["main", "leaf-1", "draining", "1", "1", "0", "1", "0", "0", "-"]]
    assert answer(admin, "nodes", "drain", "main", "--undo")["state"] == "up"
    assert admin("nodes", "drain", "moon") == (1, "", "forebay: There is no node 'moon'.\n")


def test_a_device_is_closed_with_a_cause_and_opened(admin: Run, pool: Pool) -> None:
    assert admin("devices", "cordon", "main/cpu:0", "--cause", "fan fails") == (0, "Device main/cpu:0 gets no new lease.\n", "")
    row = answer(admin, "devices", "list", "--node", "main")[0]
    (shown,) = table(admin("devices", "list")[1])
    assert shown[:4] == ["main/cpu:0", "main", "cpu-dev", "4,096 MiB"] and shown[-1] == row["cause"] == "fan fails" and row["cordoned"]
    assert shown[-3] == ", ".join(row["leases"])
    assert not answer(admin, "devices", "uncordon", "main/cpu:0")["cordoned"]
    assert admin("devices", "list", "--node", "moon")[1] == "No device.\n"


def test_a_model_is_kept_for_tenants(admin: Run) -> None:
    status, out, _ = admin("models", "set", "cpu-dev", "--tenant", "acme", "--tenant", "globex")
    assert (status, table(out)) == (0, [["cpu-dev", "1", "0", "0", "acme, globex"]])
    assert answer(admin, "models", "set", "cpu-dev")["tenants"] is None


def test_a_flavor_has_shares_gangs_and_residents(
    admin: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--memory", "1GiB", "--served-by", "0.25*cpu-dev", "--served-by", "16*MI250", "--residents-max", "3", "--images", "none")
    status, out, _ = admin("flavors", "set", "mixed.1gb", *words)
    shown = ["mixed.1gb", "1,024 MiB", "not billed", "0.25 x cpu-dev or 16 x MI250", "3", "none", "torch, xla, exec", "-"]
    assert (status, table(out)) == (0, [shown])
    row = next(row for row in answer(admin, "flavors", "list") if row["name"] == "mixed.1gb")
    assert row["equivalents"][0] == {"model": "cpu-dev", "count": 1, "share_milli": 250, "devices": 1, "speed": 100}
    assert row["residents_max"] == 3
    monkeypatch.setenv("FOREBAY_TOKEN", "ada")
    assert main(["flavor", "list"]) == 0
    assert "| 0.25 x cpu-dev or 16 x MI250 " in capsys.readouterr().out


def test_a_flavor_offers_what_an_operator_says(admin: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("flavors", "set", "calls.1gb", "--memory", "1GiB", "--served-by", "1*cpu-dev")
    assert answer(admin, *words, "--runtimes", "xla, torch,xla")["runtimes"] == ["torch", "xla"]
    status, out, _ = admin("flavors", "list")
    assert status == 0 and next(row for row in table(out) if row[0] == "calls.1gb")[6] == "torch, xla"
    monkeypatch.setenv("FOREBAY_TOKEN", "ada")
    assert main(["flavor", "list"]) == 0
    assert "| torch, xla " in capsys.readouterr().out
    monkeypatch.setenv("FOREBAY_TOKEN", "operator")
    assert answer(admin, *words)["runtimes"] is None
    for wrong in ("cuda", "", ",", "torch xla"):
        with pytest.raises(SystemExit):
            admin(*words, "--runtimes", wrong)
        assert "is not like torch,xla: there are torch, xla, exec" in capsys.readouterr().err


def test_a_flavor_has_places_of_its_own_that_processes_may_reach(admin: Run, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("flavors", "set", "out.1gb", "--memory", "1GiB", "--served-by", "1*cpu-dev")
    assert answer(admin, *words, "--egress", "PyPI.org:443, 10.1.2.3:8443")["egress"] == ["pypi.org:443", "10.1.2.3:8443"]
    assert answer(admin, *words, "--egress", "None")["egress"] == []
    assert answer(admin, *words)["egress"] is None
    for wrong in ("pypi.org", "", "127.0.0.1:80", "a.example:443,none"):
        with pytest.raises(SystemExit):
            admin(*words, "--egress", wrong)
        assert "is no place" in (told := capsys.readouterr().err) or "never let out" in told


@pytest.mark.parametrize("wrong", ["1QiB", "GiB", "1.5GiB"])
def test_a_size_that_is_none_is_said_before_the_pool_is_asked(admin: Run, capsys: pytest.CaptureFixture[str], wrong: str) -> None:
    with pytest.raises(SystemExit):
        admin("flavors", "set", "x", "--memory", wrong, "--served-by", "1*cpu-dev")
    assert "is no size; write for example 64GiB" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["cpu-dev", "1.5*cpu-dev", "-1*cpu-dev", "*cpu-dev"])
def test_devices_that_cannot_be_are_said_before_the_pool_is_asked(admin: Run, capsys: pytest.CaptureFixture[str], wrong: str) -> None:
    with pytest.raises(SystemExit):
        admin("flavors", "set", "x", "--memory", "1GiB", f"--served-by={wrong}")
    assert "--served-by" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["soon", "nan", "1e999"])
def test_a_number_that_is_none_is_said_before_the_pool_is_asked(admin: Run, capsys: pytest.CaptureFixture[str], wrong: str) -> None:
    with pytest.raises(SystemExit):
        admin("nodes", "drain", "main", "--grace", wrong)
    assert f"argument --grace: {wrong} is not a number from 0 on" in capsys.readouterr().err


def test_quotas_of_a_tenant_and_of_a_user_are_set(admin: Run) -> None:
    bounds = ("--devices", "0.5", "--device-hours", "10", "--window-days", "7", "--revoke", "--priority-max", "5", "--weight", "2")
    assert admin("quotas", "set", "globex", *bounds, "--parked", "3MiB") == (0, "The quota of globex is set.\n", "")
    row = answer(admin, "quotas", "set", "globex/ben", "--devices", "0", "--end-when-full")
    assert (row["parked_bytes"], row["on_parked_full"], row["parked_bytes_held"]) == (None, "end", 0)
    assert (row["tenant"], row["user"], row["devices_milli"], row["window_seconds"]) == ("globex", "ben", 0, None)
    rows = {tuple(row[:2]): row[2:] for row in table(admin("quotas", "list")[1])}
    assert rows["globex", "-"] == ["0.5", "0", "10", "0.00", "7 days", "revoke", "5", "2", "3 MiB", "0 MiB"]
    assert rows["globex", "ben"] == ["0", "0", "-", "0.00", "-", "wait", "-", "1", "-", "0 MiB"]


def test_the_queue_says_who_waits_and_why(admin: Run, pool: Pool) -> None:
    (row,) = table(admin("queue", "--tenant", "acme")[1])
    assert row[:6] == ["1", pool.waiting, "acme", "ada", "dev.1gb", "0"] and row[7].startswith("shortage: ")
    assert admin("queue", "--tenant", "globex")[1] == "Nobody waits.\n"


def test_a_bearer_without_the_scope_is_refused_in_one_sentence(admin: Run) -> None:
    assert admin("nodes", "drain", "main", who="ada") == (1, "", "forebay: ada needs the scope custom:forebay:operate.\n")
    assert admin("sessions", "revoke", "none", who="ada")[0] == 1


@pytest.mark.parametrize("url", [None, "local"])
def test_no_service_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str | None) -> None:
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    if url is not None:
        monkeypatch.setenv("FOREBAY_URL", url)
    assert main(["admin", "queue"]) == 1
    error = capsys.readouterr().err
    assert "nothing to administer" in error and "FOREBAY_URL" in error and error.count("\n") == 1


def test_leases_are_taken_back_and_sessions_moved_and_ended(admin: Run, pool: Pool) -> None:
    assert answer(admin, "sessions", "move", pool.holder) == {"session": pool.holder, "from": "main/cpu:0"}
    assert admin("sessions", "move", pool.holder) == (0, f"Session {pool.holder} leaves main/cpu:0.\n", "")
    assert admin("sessions", "move", pool.waiting) == (1, "", "forebay: This session has nothing on a device.\n")
    status, out, _ = admin("sessions", "revoke", pool.holder)
    assert status == 0 and out.startswith(f"Session {pool.holder} gives its lease ") and out.endswith(" back within 0.2 s.\n")
    assert admin("sessions", "revoke", "none") == (1, "", "forebay: There is no such session.\n")
    states = {row[0]: row[5] for row in table(admin("sessions", "list", "--tenant", "acme")[1])}
    assert set(states) == {pool.holder, pool.waiting}
    assert admin("sessions", "end", pool.waiting) == (0, f"Session {pool.waiting} is over.\n", "")
    assert pool.waiting not in [row["session"] for row in answer(admin, "sessions", "list")]
    assert admin("sessions", "end", pool.holder, "--json") == (0, "null\n", "")
