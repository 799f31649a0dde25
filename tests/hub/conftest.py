"""A real JupyterHub with Forebay's tenants, roles and scopes, and nothing else of Forebay."""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hub_process import STOP_TIMEOUT_SECONDS, free_ports, wait_ready
from people_pages import Caller

ADMIN_TOKEN = "a" * 32
_addresses = itertools.count(1)

CONFIGURATION = """
import os
from pathlib import Path
from forebay_hub.configuration import Settings, configure
from forebay_hub.branding import Branding
from forebay_hub.logins import LoginsAuthenticator, ensure_logins
from forebay_hub.services import ManagedService
from forebay_hub.tenants import directory_of

directory = directory_of({{
    "operators": ["operator"],
    "tenants": {{
        "acme": {{"owners": ["acme-owner"], "members": ["acme-member"]}},
        "globex": {{"owners": ["globex-owner"], "members": []}},
        "initech": {{"owners": ["initech-owner"]}},
    }},
}})
pages = ManagedService("dashboards", "http://127.0.0.1:{pages}", ("{python}", "-m", "http.server", "--bind", "127.0.0.1", "{pages}"), {{}})
directory = configure(c, Settings(directory, (pages,), "sqlite:///hub.sqlite", branding=Branding("Acme <Cloud>", help_url="https://help.example/")))
c.JupyterHub.services.append({{"name": "tests", "api_token": "{admin_token}"}})
c.JupyterHub.load_roles.append({{"name": "tests", "services": ["tests"], "scopes": ["admin:users", "groups", "tokens"]}})
c.JupyterHub.bind_url = "http://127.0.0.1:{public}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub}"
c.JupyterHub.authenticator_class = LoginsAuthenticator
c.LoginsAuthenticator.logins_file = "logins.json"
ensure_logins(Path("logins.json"), directory.people)
c.JupyterHub.proxy_class = "traefik_file"
c.TraefikProxy.traefik_api_url = "http://127.0.0.1:{proxy}"
c.TraefikProxy.traefik_api_username = "hub"
c.TraefikProxy.traefik_api_password = "tests"
"""


@dataclass(frozen=True)
class Hub:
    """A running hub; ``ask`` acts as an administrator."""

    api_url: str
    log: Path
    admin_token: str = ADMIN_TOKEN

    @property
    def folder(self) -> Path:
        """Where its database and its logins are."""
        return self.log.parent

    def ask(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"token {ADMIN_TOKEN}"}
        response = httpx.request(method, f"{self.api_url}/{path}", json=body, headers=headers, timeout=60).raise_for_status()
        return response.json() if response.content else None

    def new_token(self, user: str, **fields: object) -> str:
        """An API token of a user; ``expires_in`` in seconds, ``scopes`` default to all of the user's."""
        token = self.ask("POST", f"users/{user}/tokens", fields)["token"]
        assert isinstance(token, str)
        return token


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a module of deploy/local."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "deploy" / "local"))
    return importlib.import_module


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    public, api, proxy, pages = free_ports(4)
    (folder / "jupyterhub_config.py").write_text(
        CONFIGURATION.format(public=public, hub=api, proxy=proxy, pages=pages, python=sys.executable, admin_token=ADMIN_TOKEN)
    )
    log = folder / "hub.log"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "jupyterhub"], cwd=folder, env=environment, stdout=output, stderr=output)
    running = Hub(f"http://127.0.0.1:{api}/hub/api", log)
    try:
        wait_ready(process, f"http://127.0.0.1:{public}/hub/health", log)
        yield running
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def call(hub: Any) -> Callable[[str], Caller]:
    return cache(lambda name: Caller(hub, name))


@pytest.fixture
def browser(hub: Any) -> Iterator[httpx.Client]:
    """Each with an address of its own, as the proxy tells it."""
    headers = {"X-Forwarded-For": f"10.9.0.{next(_addresses)}"}
    with httpx.Client(base_url=hub.api_url.removesuffix("/api"), headers=headers, timeout=60) as client:
        yield client
