"""The client as people meet it: its page, where it finds the services, and what it raises."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from inspect import isfunction
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from forebay.client import Client, ForebayError, Invalid, NotConfigured, PoolUnreachable, Refused, Unauthorized
from forebay.client.errors import BY_STATUS
from forebay.client.times import unix_ns
from forebay_service import errors

PAGE = (Path(__file__).parents[2] / "docs" / "users" / "client.md").read_text(encoding="utf-8")
METHODS = {name for name in dir(Client) if not name.startswith("_") and isfunction(getattr(Client, name))}


@pytest.mark.usefixtures("environment")
def test_the_examples_of_the_page_run_in_a_notebook(cloud: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """All in one namespace, in their order."""
    monkeypatch.chdir(tmp_path)
    used = cloud.record_usage(flavor="dev.4gb", user="acme-owner")
    before = datetime.now(UTC).replace(day=1) - timedelta(days=3)
    price = {"price_nano_per_hour": 10**9, "currency": "USD", "valid_from_ns": unix_ns(before - timedelta(days=1))}
    cloud.ask("billing", "operator", "PUT", "api/prices/dev.1gb", json=price)
    cloud.record_usage(started_at_ns=unix_ns(before), duration_ns=3600 * 10**9)
    (invoice,) = cloud.ask("billing", "operator", "POST", "api/invoices", json={"tenant": "acme", "month": f"{before:%Y-%m}"})
    names: dict[str, Any] = {}
    examples = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(examples) == 9
    with cloud.session("acme-owner") as link:
        epoch = link.acquire().epoch
        for example in examples:
            exec(compile(example, "client.md", "exec"), names)  # noqa: S102 our own page
        link.release(epoch)
    said = capsys.readouterr().out
    assert f"digits.ipynb dev.4gb {used['duration_ns']} " in said and "acme-owner dev.4gb 1 " in said
    assert re.search(r"^\S+ dev\.\dgb active \d+$", said, re.MULTILINE) and said.endswith("no_session\n")
    assert (tmp_path / f"{invoice['number']}.pdf").read_bytes().startswith(b"%PDF")


def test_the_page_has_every_method(client_of: Callable[[str], Client]) -> None:
    table = PAGE[PAGE.index("## All methods") :]
    assert set(re.findall(r"`(\w+)`", re.sub(r"^(?!\|).*$", "", table, flags=re.MULTILINE))) == METHODS


@pytest.mark.usefixtures("environment")
def test_without_arguments_it_asks_the_services_of_the_environment(cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Client().chosen_flavor() and Client().balance().tenant == "acme"
    monkeypatch.setenv("FOREBAY_TOKEN", "unknown")
    with pytest.raises(Unauthorized, match="unknown, expired or revoked") as refusal:
        Client().sessions()
    assert refusal.value.code == "unauthorized"
    with pytest.raises(NotConfigured, match="billing_url"):
        Client(f"{cloud.urls['pool']}elsewhere/", cloud.hub.tokens["acme-owner"]).prices()
    monkeypatch.setenv("FOREBAY_URL", "local")
    with pytest.raises(NotConfigured, match="FOREBAY_URL"):
        Client()


def test_an_argument_that_is_wrong_is_named(client_of: Callable[[str], Client]) -> None:
    with pytest.raises(Invalid) as refusal:
        client_of("acme-owner").summary(["day"], zone="No/Where", since=0, until=1)
    assert refusal.value.status == 400
    with pytest.raises(Invalid) as refusal:
        client_of("acme-owner").set_budget(-1)
    assert refusal.value.fault["field"] == "limit_nano"
    with pytest.raises(ValueError, match="no time zone"):
        next(client_of("acme-owner").usage(datetime(2026, 11, 1)))


def test_moments_are_exact() -> None:
    assert unix_ns(datetime(2026, 11, 20, 0, 0, 0, 1, tzinfo=UTC)) == 1_795_132_800_000_001_000
    assert unix_ns(datetime(1970, 1, 1, 9, tzinfo=timezone(timedelta(hours=9)))) == 0
    assert unix_ns(7) == 7 and unix_ns(None) is None


def test_every_refusal_that_the_services_share_has_a_kind() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RequestError)]
    unnamed = {kind.status for kind in kinds if kind.status < 500} - set(BY_STATUS)
    assert unnamed == {405, 426}, "which the client's own calls never get"
    assert all(issubclass(kind, Refused) and issubclass(kind, ForebayError) for kind in BY_STATUS.values())


def test_an_answer_that_this_release_does_not_read_is_said_to_be_one(client_of: Callable[[str], Client]) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = b'[{"session": 7}]'
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            client = Client(f"http://127.0.0.1:{server.server_port}/services/pool/", "token")
            with pytest.raises(PoolUnreachable, match="cannot read"):
                client.sessions()
        finally:
            server.shutdown()
    with pytest.raises(PoolUnreachable, match="cannot be reached"):
        client.prices()
