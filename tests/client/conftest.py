"""Pool and billing as processes, with a small hub of our own, and a client of each of its people."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fork_server
import pytest
from forebay.client import Client

DASHBOARDS = Path(__file__).parents[1] / "dashboards"
sys.path.insert(0, str(DASHBOARDS))

from dashboards_installation import Hub, Installation, install, running  # noqa: E402

SETTINGS = {
    "FOREBAY_BILLING_INVOICE_GRACE_DAYS": "28",
    "FOREBAY_BILLING_SMTP_HOST": "127.0.0.1",
    "FOREBAY_BILLING_ALERT_PRIVATE_ADDRESSES": "true",
    "FOREBAY_BILLING_STRIPE_MODE": "invoices",
    "FOREBAY_BILLING_STRIPE_KEY": "rk_test_nobody",
    "FOREBAY_BILLING_STRIPE_WEBHOOK_SECRETS": '["whsec_nobody"]',
    "FOREBAY_BILLING_STRIPE_API_URL": "http://127.0.0.1:9",
}
"""Billing leaves months to the tests, and takes addresses for alerts and payments; no mail server and no Stripe answers."""


@pytest.fixture(scope="session")
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def cloud(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Pool and billing, running, with books of the module's own; workers compute nothing."""
    script = tmp_path_factory.mktemp("worker") / "python"
    script.write_text(f'#!/bin/sh\nshift 2\nexec "{fork_server.services()}" "{DASHBOARDS / "stand_in_worker.py"}" "$@"\n')
    script.chmod(0o755)
    installation = install(hub, script, tmp_path_factory.mktemp("cloud"))
    installation.billing.environment |= SETTINGS
    with running(installation, "billing", "pool"):
        yield installation


@pytest.fixture(scope="module")
def client_of(cloud: Installation) -> Callable[[str], Client]:
    """The client of one of the hub's people. The services have ports of their own, so billing's address is given."""
    return lambda who: Client(cloud.urls["pool"], cloud.hub.tokens[who], billing_url=cloud.urls["billing"])


@pytest.fixture
def environment(cloud: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the spawner gives a notebook of acme-owner."""
    for name in [name for name in os.environ if name.startswith("FOREBAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FOREBAY_URL", cloud.urls["pool"])
    monkeypatch.setenv("FOREBAY_BOOKS_URL", cloud.urls["billing"])
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", cloud.hub.tokens["acme-owner"])
