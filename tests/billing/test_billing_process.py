"""The service as a process: settings, help, clean stops, and kills."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import fork_server
import httpx
import pytest
from forebay_billing.model.types import UsageRecord
from forebay_billing.settings import Settings
from forebay_service.errors import SettingsError

TOKEN = "token-of-the-pool-service"


def write_settings(path: Path, **changes: object) -> Path:
    values = {"database_url": f"sqlite:///{path.parent}/billing.sqlite3", "port": 0, **changes}
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    caller = f'[[tokens]]\ntoken = "{TOKEN}"\nname = "pool"\nkind = "service"\nscopes = ["custom:forebay:service"]\n'
    path.write_text("\n".join([*lines, caller]))
    return path


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTERHUB_", "FOREBAY_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), **changes}


@contextmanager
def started(config: Path, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address, once it listens."""
    command = [sys.executable, "-m", "forebay_billing", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(**variables), cwd=config.parent) as process:
        assert process.stderr is not None
        seen = []
        try:
            for line in process.stderr:
                seen.append(line)
                found = re.search(r"action=service.start host=(\S+) port=(\d+)", line)
                if found:
                    break
            else:
                raise AssertionError("".join(seen))
            drain = threading.Thread(target=process.stderr.read)
            drain.start()
            yield process, f"http://{found[1]}:{found[2]}"
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(30)
            drain.join()


def post(address: str, records: list[UsageRecord]) -> httpx.Response:
    body = {"records": [asdict(record) for record in records]}
    return httpx.post(f"{address}/api/usage", json=body, headers={"Authorization": f"token {TOKEN}"}, trust_env=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_clean_and_leaves_no_journal(tmp_path: Path, usage: Callable[..., UsageRecord], number: signal.Signals) -> None:
    with started(write_settings(tmp_path / "billing.toml")) as (process, address):
        assert post(address, [usage(started_at_ns=0)]).json() == {"accepted": 1, "duplicates": 0}
        process.send_signal(number)
        assert process.wait(30) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["billing.sqlite3", "billing.toml"]


def test_a_kill_at_any_moment_loses_nothing_that_was_answered_and_bills_nothing_twice(
    tmp_path: Path, usage: Callable[..., UsageRecord]
) -> None:
    config = write_settings(tmp_path / "billing.toml")
    lately_ns = time.time_ns() - 3600 * 10**9  # months that are over are invoiced meanwhile
    batches = [[usage(f"{n}-{m}/1", started_at_ns=lately_ns) for m in range(20)] for n in range(30)]
    answered = 0
    for kill_after in (5, 12):
        with started(config) as (process, address):
            killer = threading.Timer(0.02 * kill_after, process.kill)
            killer.start()
            try:
                for batch in batches[answered:]:
                    post(address, batch).raise_for_status()
                    answered += 1
            except httpx.TransportError:
                pass
            killer.join()
        with sqlite3.connect(tmp_path / "billing.sqlite3") as connection:
            stored, transactions, postings, seals = (
                connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - our tables
                for table in ("usage", "transactions", "postings", "seals")
            )
            balance = connection.execute("SELECT sum(milli), sum(grains) FROM postings").fetchone()
        connection.close()
        assert stored >= answered * 20 and stored % 20 == 0
        assert (transactions, postings, seals) == (stored // 20, stored // 10, stored // 20)
        assert balance in ((0, 0), (None, None))
    with started(config) as (_, address):
        for batch in batches:
            assert post(address, batch).status_code == 200
        summary = httpx.get(f"{address}/api/summary?by=tenant", headers={"Authorization": f"token {TOKEN}"}, trust_env=False).json()
    assert [(row["leases"], row["cost_nano"]) for row in summary] == [(600, 20_000_000_000)]


class FakeHub(http.server.BaseHTTPRequestHandler):
    """Answers ``GET user`` as JupyterHub does."""

    def do_GET(self) -> None:
        known = self.path == "/hub/api/user" and self.headers["Authorization"] == "token of-ann"
        body = {"kind": "user", "name": "ann", "groups": ["tenant-acme", "everybody"], "scopes": ["custom:forebay:compute!user=ann"]}
        self.send_response(200 if known else 403)
        self.end_headers()
        self.wfile.write(json.dumps(body if known else {}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Tests print what matters themselves."""


def test_as_a_managed_service_it_asks_the_hub_and_lives_under_its_prefix(tmp_path: Path) -> None:
    (tmp_path / "billing.toml").write_text(f'database_url = "sqlite:///{tmp_path}/billing.sqlite3"\n')
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeHub) as hub, socket.create_server(("127.0.0.1", 0)) as reserved:
        serving = threading.Thread(target=hub.serve_forever)
        serving.start()
        port = reserved.getsockname()[1]
        reserved.close()
        variables = {
            "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub.server_port}/hub/api",
            "JUPYTERHUB_SERVICE_PREFIX": "/services/billing/",
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
        }
        with started(tmp_path / "billing.toml", **variables) as (_, address):
            assert address == f"http://127.0.0.1:{port}"

            def get(path: str, token: str) -> int:
                return httpx.get(address + path, headers={"Authorization": f"token {token}"}, trust_env=False).status_code

            prefix = "/services/billing"
            assert [get(f"{prefix}/{path}", "of-ann") for path in ("api/prices", "api/usage", "health")] == [200, 200, 200]
            assert get(f"{prefix}/api/usage?tenant=globex", "of-ann") == 403
            assert get(f"{prefix}/api/prices", "of-nobody") == 401
            assert get("/api/prices", "of-ann") == 404
        hub.shutdown()
        serving.join()


def run(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [fork_server.billing(), "-m", "forebay_billing", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd, env=environment(**variables))


def test_help_names_every_setting(tmp_path: Path) -> None:
    done = run("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert all(name in done.stdout for name in Settings.model_fields)
    assert list(tmp_path.iterdir()) == []


def test_what_prevents_a_start_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        taken = run("--config", str(write_settings(tmp_path / "taken.toml", port=port)), cwd=tmp_path)
    wrong = run("--config", str(write_settings(tmp_path / "wrong.toml", colour="red")), cwd=tmp_path)
    missing = run("--config", str(tmp_path / "missing.toml"), cwd=tmp_path)
    nobody = run(cwd=tmp_path)
    (tmp_path / "torn.sqlite3").write_bytes(b"not a database" * 100)
    torn = run("--config", str(write_settings(tmp_path / "torn.toml", database_url=f"sqlite:///{tmp_path}/torn.sqlite3")), cwd=tmp_path)
    for done, sentence in (
        (taken, f"Cannot listen on 127.0.0.1:{port}"),
        (wrong, "wrong.toml names no setting; "),
        (missing, "cannot be read"),
        (nobody, "Nobody could sign in"),
        (torn, "file is not a database"),
    ):
        assert done.returncode == 2 and sentence in done.stderr.splitlines()[-1], done.stderr
        assert "Traceback" not in done.stderr


def test_tables_can_be_given_in_the_environment(tmp_path: Path) -> None:
    variables = {
        "FOREBAY_BILLING_HUB_API_URL": "http://127.0.0.1:1/hub/api",
        "FOREBAY_BILLING_TENANT_CURRENCIES": '{acme = "EUR"}',
        "FOREBAY_BILLING_STATE_DIR": str(tmp_path),
    }
    settings = Settings.load(None, variables)
    assert (settings.currency_of("acme"), settings.currency_of("globex")) == ("EUR", "USD")
    assert settings.database == f"sqlite:///{tmp_path}/billing.sqlite3"


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"FOREBAY_BILLING_CURRENCY": "BTC"}, "^FOREBAY_BILLING_CURRENCY cannot be used: 'BTC' is not a currency"),
        ({"FOREBAY_BILLING_PREFIX": "billing"}, "_PREFIX cannot be used: "),
        ({"FOREBAY_BILLING_PORT": "70000"}, "_PORT cannot be used: "),
        ({"FOREBAY_BILLING_BUSY_SECONDS": "0"}, "_BUSY_SECONDS cannot be used: "),
        ({"FOREBAY_BILLING_TOKENS": '[{token = "short", name = "x", kind = "user"}]'}, "_TOKENS .tokens.0.token. cannot be used: "),
    ],
)
def test_a_setting_that_cannot_be_is_named(variables: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        Settings.load(None, {"FOREBAY_BILLING_HUB_API_URL": "http://127.0.0.1:1/hub/api", **variables})
