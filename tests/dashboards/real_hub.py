"""A JupyterHub with its own proxy in front of pool, billing and dashboards: for what pages do through the hub's API."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from dashboards_installation import Installation, free_port

SERVICES = ("pool", "billing", "dashboards")
PYTHON = sys.executable
START_SECONDS = 120
CONFIGURATION = """
from pathlib import Path
from forebay_hub.configuration import Settings, configure
from forebay_hub.logins import LoginsAuthenticator, ensure_logins
from forebay_hub.services import ExternalService
from forebay_hub.tenants import directory_of

written = directory_of({{
    "operators": ["operator"],
    "tenants": {{"acme": {{"owners": ["acme-owner"], "members": ["acme-member"]}}, "globex": {{"owners": ["globex-owner"]}}}},
}})
services = tuple(ExternalService(name, url, token, name == "dashboards") for name, (url, token) in {services!r}.items())
directory = configure(c, Settings(written, services, "sqlite:///hub.sqlite"))
c.JupyterHub.bind_url = "{address}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub}"
c.JupyterHub.authenticator_class = LoginsAuthenticator
c.LoginsAuthenticator.logins_file = "logins.json"
ensure_logins(Path("logins.json"), directory.people)
c.JupyterHub.redirect_to_server = False
c.JupyterHub.proxy_class = "traefik_file"
c.TraefikProxy.traefik_api_url = "http://127.0.0.1:{proxy}"
c.TraefikProxy.traefik_api_username = "hub"
c.TraefikProxy.traefik_api_password = "tests"
"""


class RealHub:
    """It is described first, since services are told where it is, and then runs for as long as a block does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._api, self._proxy = free_port(), free_port(), free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._tokens = {name: secrets.token_hex(16) for name in (*SERVICES, "edge")}  # which does not run

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._api}/hub/api"

    def token_of_service(self, name: str) -> str:
        return self._tokens[name]

    def password(self, name: str) -> str:
        found: str = json.loads((self.folder / "logins.json").read_text())[name]
        return found

    def tell(self, installation: Installation) -> None:
        """Behind its proxy the services have one address."""
        through = {"JUPYTERHUB_HOST": "", "JUPYTERHUB_OAUTH_CALLBACK_URL": "/services/dashboards/oauth_callback"}
        installation.dashboards.environment.update(through)

    @contextmanager
    def running(self, installation: Installation) -> Iterator[None]:
        """The services run by then: it waits half a minute for each that does not."""
        listening = {name: (installation.urls[name].partition("/services/")[0], self._tokens[name]) for name in SERVICES}
        text = CONFIGURATION.format(services=listening, address=self.address, hub=self._api, proxy=self._proxy)
        (self.folder / "jupyterhub_config.py").write_text(text)
        environment = {**os.environ, "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}"}
        log = self.folder / "hub.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [PYTHON, "-m", "jupyterhub"], cwd=self.folder, env=environment, stdout=output, stderr=output
            )
        try:
            self._await(process, log)
            yield
        finally:
            process.terminate()
            process.wait(60)

    def _await(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """Until the proxy leads to the hub and to each service: it learns of them one after the other."""
        deadline = time.monotonic() + START_SECONDS
        paths = ["hub/health", *(f"services/{name}/health" for name in SERVICES)]
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if all(httpx.get(f"{self.address}/{path}").is_success for path in paths):
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"the hub does not start:\n{log.read_text()[-3000:]}")
