"""Settings, the command line, and that the reference lists everything there is."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

import pytest
from dashboards_installation import PYTHONPATH, ROOT
from forebay_dashboards.service import ROUTES
from forebay_dashboards.settings import Settings
from forebay_service.errors import SettingsError

REQUIRED = {
    "JUPYTERHUB_API_TOKEN": "t",
    "FOREBAY_DASHBOARDS_POOL_URL": "http://127.0.0.1:1/services/pool/",
    "FOREBAY_DASHBOARDS_BILLING_URL": "http://127.0.0.1:2/services/billing/",
}
REFERENCE = ROOT / "docs" / "reference" / "dashboards.md"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTERHUB_"))}
    command = [sys.executable, "-m", "forebay_dashboards", *arguments]
    return subprocess.run(command, env={**clean, "PYTHONPATH": PYTHONPATH, **environment}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"FOREBAY_DASHBOARDS_POOL_URL": "pool"}, "_POOL_URL cannot be used"),
        ({"FOREBAY_DASHBOARDS_PAGE_RECORDS": "0"}, "_PAGE_RECORDS cannot be used"),
        ({"FOREBAY_DASHBOARDS_UPDATE_SECONDS": "-1"}, "_UPDATE_SECONDS cannot be used"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(changes: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Settings.load(None, {**REQUIRED, **changes})


def test_the_command_refuses_to_start_without_what_it_needs_and_when_its_port_is_taken() -> None:
    missing = run()
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        taken = run(**REQUIRED, FOREBAY_DASHBOARDS_PORT=str(port), JUPYTERHUB_CLIENT_ID="service-dashboards")
    assert taken.returncode == 2
    assert f"Cannot listen on 127.0.0.1:{port}" in taken.stderr


def written(pattern: str) -> str:
    """The address of a route as the reference writes it, without its fragments: ``{}`` for what varies."""
    path = re.sub(r"\(\?:/\((.*?)\)\)\?", "", pattern).replace("\\.", ".")
    return re.sub(r"\([^)]+\)", "{}", path)


def test_the_reference_lists_every_setting_and_page() -> None:
    text = REFERENCE.read_text()
    for name in Settings.model_fields:
        assert f"`{name}`" in text, name
    addresses = re.sub(r"\{\w+\}", "{}", text)
    for pattern, _ in ROUTES:
        assert f"`{written(pattern)}" in addresses, pattern
