"""JupyterHub on a host whose services systemd keeps: hub, proxy, pool, billing and pages are units of their own.

``forebay admin init`` writes ``host.toml``, which says where everything is, and the files of secrets that the units read.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_service.account import Account
from forebay_service.errors import SettingsError
from forebay_service.people.names import slug_of
from jupyterhub_traefik_proxy.fileprovider import TraefikFileProviderProxy
from traitlets import Instance, observe

from forebay_hub.branding import read_branding
from forebay_hub.configuration import Settings, configure
from forebay_hub.culling import culling_of
from forebay_hub.logins import LoginsAuthenticator, ensure_logins
from forebay_hub.proxy import RoutesFile
from forebay_hub.services import external_services, secret
from forebay_hub.tenants import read_directory, read_file
from forebay_hub.uids import NUMBERS, Register, range_of

LISTENERS = ("hub", "proxy", "pool", "billing", "dashboards", "edge")
"""Who listens on the loopback interface, on ``first_port`` and the ports after it, in this order."""


@dataclass(frozen=True)
class Host:
    """What ``host.toml`` says. ``state`` is the folder of all that outlives a restart."""

    name: str
    port: int
    first_port: int
    state: Path
    notebook: Path
    certificate: Path
    key: Path
    uids: str = NUMBERS

    @classmethod
    def read(cls, file: Path) -> Host:
        """Raises SettingsError."""
        try:
            content: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))["host"]
            return cls(**content | {name: Path(content[name]) for name in ("state", "notebook", "certificate", "key")})
        except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as error:
            raise SettingsError(f"{file} cannot be used ({error}); run: forebay admin init") from None

    def address_of(self, listener: str) -> str:
        return f"http://127.0.0.1:{self.first_port + LISTENERS.index(listener)}"


class HostTraefik(TraefikFileProviderProxy):  # type: ignore[misc] # no type information in that package
    """A proxy that runs as a unit of its own, under its own account, and reads the routes that the hub writes."""

    account = Instance(Account, config=True, help="What the proxy runs as; its group reads the routes, and nobody else.")

    @observe("dynamic_config_file")  # type: ignore[untyped-decorator] # traitlets is not followed
    def _set_dynamic_config_file(self, _change: object) -> None:
        """In place of the base class's, whose files nobody but the hub reads."""
        self.dynamic_config_handler = RoutesFile(self.dynamic_config_file, self.account)


def configure_host(c: Any, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Writes all of it into a JupyterHub configuration object. ``folder`` holds ``host.toml`` and ``hub.toml``. Raises SettingsError."""
    host, written = Host.read(folder / "host.toml"), read_directory(folder / "hub.toml")
    own = host.state / "hub"
    database_url = environment.get("FOREBAY_HUB_DATABASE_URL") or f"sqlite:///{own}/hub.sqlite"
    services = external_services(LISTENERS[2:], host.address_of, environment)
    metrics_token, branding = secret(environment, "FOREBAY_HUB_METRICS_TOKEN"), read_branding(folder / "hub.toml")
    culler = _account(_gid_of_proxy(host)) if os.getuid() == 0 else None
    culling = culling_of(read_file(folder / "hub.toml"), culler)
    directory = configure(c, Settings(written, services, database_url, metrics_token, branding, culling))
    c.JupyterHub.upgrade_db = True  # JupyterHub's own schema; it copies SQLite's file before, and `forebay admin upgrade` all
    c.JupyterHub.bind_url = f"https://{host.name}:{host.port}"
    c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = str(host.certificate), str(host.key)
    c.JupyterHub.hub_bind_url = host.address_of("hub")
    c.JupyterHub.cookie_secret_file = str(own / "cookie_secret")
    c.JupyterHub.authenticator_class = LoginsAuthenticator
    c.LoginsAuthenticator.logins_file = str(own / "logins.json")
    ensure_logins(own / "logins.json", directory.people)
    _set_proxy(c, host, environment)
    _set_spawner(c, host)


def _set_proxy(c: Any, host: Host, environment: Mapping[str, str]) -> None:
    c.JupyterHub.proxy_class = HostTraefik
    routes = host.state / "routes"
    c.HostTraefik.account = _account(_gid_of_proxy(host))
    c.TraefikProxy.should_start = False
    c.TraefikProxy.traefik_api_url = host.address_of("proxy")
    c.TraefikProxy.traefik_api_username = "hub"
    c.TraefikProxy.traefik_api_password = secret(environment, "FOREBAY_HUB_PROXY_PASSWORD")
    c.TraefikFileProviderProxy.dynamic_config_file = str(routes / "routes.toml")


def _gid_of_proxy(host: Host) -> int:
    """systemd gives the folder to the proxy. What stops idle servers runs under this account too: it reads nothing either."""
    return (host.state / "routes").stat().st_gid


def _account(number: int) -> Account:
    """Of a login or the proxy: in no group but its own."""
    return Account(number, (number,))


def _set_spawner(c: Any, host: Host) -> None:
    c.JupyterHub.spawner_class = "forebay"
    c.VirtualGpuMixin.pool_url = f"{host.address_of('pool')}/services/pool/"
    c.VirtualGpuMixin.billing_url = f"{host.address_of('billing')}/services/billing/"
    c.LocalVirtualGpuSpawner.notebook_prefix = str(host.notebook)
    c.LocalVirtualGpuSpawner.home_dir_template = str(host.state / "homes" / "{username}")
    c.LocalVirtualGpuSpawner.log_file_template = str(host.state / "hub" / "servers" / "{username}.log")
    if os.getuid() == 0:
        register = Register(host.state / "hub" / "uids.json", range_of(host.uids))
        c.LocalVirtualGpuSpawner.account_of = lambda name: _account(register.of(slug_of(name)))
    c.Spawner.default_url = "/lab"
    c.Spawner.start_timeout = c.Spawner.http_timeout = 60
