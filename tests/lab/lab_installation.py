"""Jupyter on this machine, with the built extension, between a real pool with a development device and real billing."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fork_server
import httpx
from dashboards_installation import Hub, Process, Session, free_port, running
from forebay_spawner.mixin import ENVIRONMENTS
from forebay_wire import messages as wire
from websockets.sync.client import connect

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "lab" / "forebay_lab" / "labextension"
PACKAGES = ("service", "pool", "billing", "hub")
"""What has nothing compiled in it; the rest is where the tests' own Python finds it."""
EXTENSION = "forebay-lab"
USER = "acme-member"
START_SECONDS = 300


@dataclass
class Cloud:
    """Pool and billing; ``dev.1gb`` and ``dev.4gb`` are served by one device, and two others could serve a flavor together."""

    hub: Hub
    pool: Process
    billing: Process
    urls: dict[str, str]

    def ask(self, service: str, who: str, method: str, path: str, **options: Any) -> Any:
        headers = {"Authorization": f"token {self.hub.tokens[who]}"}
        response = httpx.request(method, self.urls[service] + path, headers=headers, timeout=60, **options)
        response.raise_for_status()
        return response.json() if response.content else None

    def mine(self) -> list[dict[str, Any]]:
        """The user's sessions, as the pool sees them."""
        found: list[dict[str, Any]] = self.ask("pool", USER, "GET", "api/sessions")
        return found

    def leases(self) -> list[dict[str, Any]]:
        """All that are open."""
        found: list[dict[str, Any]] = self.ask("pool", "operator", "GET", "api/leases")
        return found

    @contextmanager
    def session(self, flavor: str = "dev.1gb", process: str = "train.py") -> Iterator[Session]:
        """Another process of the user's with a virtual device."""
        url = self.urls["pool"].replace("http", "ws", 1) + "api/session"
        with connect(url, additional_headers={"Authorization": f"token {self.hub.tokens[USER]}"}) as link:
            link.send(wire.Hello(process=process, pid=1, torch=torch_version(), flavor=flavor).encode())
            opened = wire.to_client(link.recv(timeout=60))
            assert isinstance(opened, wire.SessionOpened), opened
            yield Session(link)

    def make_pair(self) -> None:
        """A flavor of two devices together, ``pair``."""
        body = {"memory_bytes": 900 << 20, "equivalents": [{"model": "cpu-half", "count": 2}]}
        self.ask("pool", "operator", "PUT", "api/flavors/pair", json=body)

    @contextmanager
    def device_held(self) -> Iterator[None]:
        """The one device computes for somebody else."""
        with self.session() as other:
            granted = other.acquire("train.py", None)
            yield
            other.release(granted.epoch)


def torch_version() -> str:
    from importlib.metadata import version

    return version("torch")


def install(hub: Hub, folder: Path, **of_the_pool: str) -> Cloud:
    """Describes the services; nothing is started. The pool has these settings besides."""
    ports = {name: free_port() for name in ("billing", "pool")}
    urls = {name: f"http://127.0.0.1:{port}/services/{name}/" for name, port in ports.items()}

    def process(name: str, **settings: str) -> Process:
        environment = {
            "PYTHONPATH": os.pathsep.join([*(str(ROOT / package) for package in PACKAGES), os.environ.get("PYTHONPATH", "")]),
            "JUPYTERHUB_API_URL": hub.url,
            "JUPYTERHUB_API_TOKEN": hub.tokens["service"],
            "JUPYTERHUB_SERVICE_NAME": name,
            "JUPYTERHUB_SERVICE_PREFIX": f"/services/{name}/",
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{ports[name]}",
            **{f"FOREBAY_{name.upper()}_{key.upper()}": value for key, value in settings.items()},
        }
        return Process(f"forebay_{name}", environment, urls[name] + "health", folder / f"{name}.log")

    alone, pair = (
        '{kind = "cpu", model = "cpu-dev", memory = "4 GiB"}',
        '{kind = "cpu", model = "cpu-half", memory = "512 MiB", count = 2}',
    )
    pool = process(
        "pool",
        state_dir=str(folder / "pool"),
        billing_url=urls["billing"],
        worker_python=str(fork_server.services()),
        devices=f"[{alone}, {pair}]",
        **{"idle_release_seconds": "60", **of_the_pool},
    )
    billing = process("billing", database_url=f"sqlite:///{folder / 'billing.sqlite3'}")
    return Cloud(hub, pool, billing, urls)


@dataclass
class Jupyter:
    """A Jupyter server with JupyterLab and Notebook."""

    url: str
    token: str
    home: Path
    pid: int

    def write(self, name: str, *cells: str, kernel: str = "python3") -> None:
        """A notebook with these cells; a kernel of another name is that of an environment, which is made."""
        own = kernel.removeprefix("forebay-")
        if kernel != "python3" and not (self.home / ".forebay" / "environments" / own).exists():
            command = [sys.executable, "-m", "forebay", "env", "create", own]
            subprocess.run(command, env={**os.environ, "HOME": str(self.home)}, check=True)
        code = [
            {"cell_type": "code", "id": f"c{number}", "source": cell, "metadata": {}, "outputs": [], "execution_count": None}
            for number, cell in enumerate(cells)
        ]
        metadata = {"kernelspec": {"name": kernel, "display_name": "Python 3", "language": "python"}}
        text = json.dumps({"cells": code, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})
        (self.home / "work" / name).write_text(text, encoding="utf-8")


def environment(cloud: Cloud, home: Path) -> dict[str, str]:
    """What a kernel of the user has."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTERHUB_"))}
    return {
        **ours,
        "FOREBAY_URL": cloud.urls["pool"],
        "FOREBAY_BOOKS_URL": cloud.urls["billing"],
        "FOREBAY_TOKEN": cloud.hub.tokens[USER],
        "HOME": str(home),
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "LANG": "C.UTF-8",
    }


@contextmanager
def jupyter(cloud: Cloud, home: Path) -> Iterator[Jupyter]:
    """A running server whose only extension is the built one; its kernels run in the user's environments, as the spawner has it."""
    extensions = home / "data" / "labextensions"
    extensions.mkdir(parents=True)
    (extensions / EXTENSION).symlink_to(BUILT)
    labconfig = home / "config" / "labconfig"
    labconfig.mkdir(parents=True)
    (home / "work").mkdir()
    page = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}, "hubPrefix": "/hub/"}
    (labconfig / "page_config.json").write_text(json.dumps(page), encoding="utf-8")
    port, token = free_port(), secrets.token_hex(16)
    options = {
        "port": port,
        "port_retries": 0,
        "open_browser": False,
        "allow_root": True,
        "root_dir": str(home / "work"),
        "jpserver_extensions": {"jupyterlab": True, "notebook": True},
    }
    settings = {"ServerApp": options, "IdentityProvider": {"token": token}}
    (home / "config" / "jupyter_server_config.json").write_text(json.dumps(settings), encoding="utf-8")
    url = f"http://127.0.0.1:{port}"
    with (home / "jupyter.log").open("wb") as log:
        command = [sys.executable, *ENVIRONMENTS, sys.executable, "-m", "jupyter_server"]
        server = subprocess.Popen(command, env=environment(cloud, home), stdout=log, stderr=log, cwd=home)
    try:
        _await(f"{url}/api/status?token={token}", server, home / "jupyter.log")
        yield Jupyter(url, token, home, server.pid)
    finally:
        server.terminate()
        server.wait(120)


def _await(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"Jupyter does not start:\n{log.read_text()}")
        try:
            if httpx.get(url).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.1)


__all__ = ["Cloud", "Hub", "Jupyter", "environment", "install", "jupyter", "running"]
