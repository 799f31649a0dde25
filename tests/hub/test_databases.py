"""JupyterHub while its database is away: a server that starts anew, and a disk that is full. Tokens are good again by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import ADMIN_TOKEN, CONFIGURATION, Hub
from hub_process import STOP_TIMEOUT_SECONDS, free_ports, wait_ready

DISK_BYTES = 4 << 20
PATIENCE_LOOKS = 300


@pytest.fixture
def start_hub(tmp_path: Path) -> Iterator[Callable[[str], Hub]]:
    """Starts a hub whose database has the URL."""
    processes = []

    def start(database_url: str) -> Hub:
        public, api, proxy, pages = free_ports(4)
        text = CONFIGURATION.format(public=public, hub=api, proxy=proxy, pages=pages, python=sys.executable, admin_token=ADMIN_TOKEN)
        (tmp_path / "jupyterhub_config.py").write_text(text.replace('"sqlite:///hub.sqlite"', repr(database_url)))
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        log = tmp_path / "hub.log"
        with log.open("wb") as output:
            processes.append(
                subprocess.Popen([sys.executable, "-m", "jupyterhub"], cwd=tmp_path, env=environment, stdout=output, stderr=output)
            )
        wait_ready(processes[0], f"http://127.0.0.1:{public}/hub/health", log)
        return Hub(f"http://127.0.0.1:{api}/hub/api", log)

    yield start
    for process in processes:
        process.terminate()
        process.wait(STOP_TIMEOUT_SECONDS)


def status(hub: Hub, path: str, token: str | None = None) -> int:
    headers = {} if token is None else {"Authorization": f"token {token}"}
    return httpx.get(f"{hub.api_url}/{path}", headers=headers, timeout=60).status_code


def looks(hub: Hub, path: str, wanted: int, token: str | None = None) -> None:
    """Until the path answers so."""
    for _ in range(PATIENCE_LOOKS):
        if status(hub, path, token) == wanted:
            return
        assert subprocess.run(["sleep", "0.2"]).returncode == 0
    pytest.fail(f"{path} does not answer {wanted}:\n{hub.log.read_text()[-3000:]}")


def check_it_goes_on_without(hub: Hub, away: Callable[[], None], back: Callable[[], None]) -> None:
    token = hub.new_token("acme-member")
    assert (status(hub, "user", token), status(hub, "forebay/health")) == (200, 200)
    away()
    looks(hub, "forebay/health", 503)
    back()
    looks(hub, "forebay/health", 200)
    looks(hub, "user", 200, token)
    assert hub.new_token("acme-member") != token
    assert status(hub, "user", "0" * 32) == 403


@pytest.mark.full_sweep
def test_a_database_server_that_starts_anew_costs_nobody_a_token(own_postgres: Any, start_hub: Callable[[str], Hub]) -> None:
    hub = start_hub(own_postgres.new_database("hub"))
    check_it_goes_on_without(hub, lambda: own_postgres.stop("immediate"), own_postgres.start)


@pytest.mark.full_sweep
def test_a_disk_that_is_really_full_costs_nobody_a_token(start_hub: Callable[[str], Hub], tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)], capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk is not permitted here")
    filler = disk / "filler"

    def fill() -> None:
        with filler.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(b"x" * size):
                        pass
                except OSError:
                    continue

    try:
        check_it_goes_on_without(start_hub(f"sqlite:///{disk}/hub.sqlite"), fill, filler.unlink)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
