"""Settings, the command line, and that the reference lists everything there is."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from dashboards_installation import PYTHONPATH, ROOT
from forebay_dashboards.errors import SettingsError
from forebay_dashboards.service import ROUTES
from forebay_dashboards.settings import Settings, describe, load

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


def test_the_environment_wins_over_the_file_and_the_hub_over_both(tmp_path: Path) -> None:
    path = tmp_path / "dashboards.toml"
    path.write_text('page_records = 10\nbrowsers_max = 5\nprefix = "/file/"\n')
    environment = {**REQUIRED, "FOREBAY_DASHBOARDS_BROWSERS_MAX": "7", "JUPYTERHUB_SERVICE_PREFIX": "/services/d/"}
    settings = load(path, {**environment, "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:9001"})
    assert (settings.page_records, settings.browsers_max, settings.prefix) == (10, 7, "/services/d/")
    assert settings.address == ("127.0.0.1", 9001)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"FOREBAY_DASHBOARDS_COLOUR": "blue"}, "There is no setting 'colour'"),
        ({"FOREBAY_DASHBOARDS_POOL_URL": "pool"}, "pool_url cannot be used"),
        ({"FOREBAY_DASHBOARDS_PAGE_RECORDS": "0"}, "page_records cannot be used"),
        ({"FOREBAY_DASHBOARDS_UPDATE_SECONDS": "-1"}, "update_seconds cannot be used"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(changes: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load(None, {**REQUIRED, **changes})


def test_a_setting_that_is_missing_is_named_with_the_ways_to_give_it() -> None:
    with pytest.raises(SettingsError, match="FOREBAY_DASHBOARDS_BILLING_URL"):
        load(None, {name: value for name, value in REQUIRED.items() if "BILLING" not in name})


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("page_records = = 3")
    for name, says in (("bad.toml", "is not TOML"), ("none.toml", "cannot be read: No such file")):
        with pytest.raises(SettingsError, match=says):
            load(tmp_path / name, REQUIRED)


def test_the_token_is_never_shown() -> None:
    assert "hub_token" not in repr(load(None, {**REQUIRED, "JUPYTERHUB_API_TOKEN": "secret"}))


def test_the_command_explains_every_setting() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in Settings.model_fields)
    assert describe() in shown.stdout


def test_the_command_refuses_to_start_without_what_it_needs_and_when_its_port_is_taken() -> None:
    missing = run()
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        taken = run(**REQUIRED, FOREBAY_DASHBOARDS_URL=f"http://127.0.0.1:{port}", JUPYTERHUB_CLIENT_ID="service-dashboards")
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
