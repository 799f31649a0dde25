"""JupyterHub on one machine; ``docs/operators/local.md`` describes every setting. Started by ``make up``."""

import json
import os
import secrets
import sys
from pathlib import Path

from forebay_hub.branding import read_branding
from forebay_hub.configuration import Settings, configure
from forebay_hub.culling import culling_of
from forebay_hub.logins import LoginsAuthenticator, ensure_logins
from forebay_hub.proxy import KeptTraefik
from forebay_hub.services import python_service
from forebay_hub.tenants import read_directory, read_file
from forebay_hub.tokens import ensure_token
from forebay_service.account import Account
from forebay_service.people.names import slug_of

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from accounts import PROXY, Accounts  # noqa: E402 - lies beside this file
from accounts import SERVICES as SERVICE_ACCOUNT  # noqa: E402 - as above
from place import CHECKOUT, SERVICES, Place  # noqa: E402 - as above

c = get_config()  # type: ignore[name-defined]  # noqa: F821 - JupyterHub provides it
place = Place.from_environment(os.environ)
branding = read_branding(HERE / "hub.toml")
environments = {
    "pool": {
        "FOREBAY_POOL_STATE_DIR": str(place.state / "pool"),
        "FOREBAY_POOL_SOCKET_DIR": str(place.state / "sockets"),
        "FOREBAY_POOL_LIBRARIES_DIR": str(place.state / "libraries"),
        "FOREBAY_POOL_BILLING_URL": place.service_url("billing"),
    },
    "billing": {"FOREBAY_BILLING_STATE_DIR": str(place.state / "billing")},
    "edge": {"FOREBAY_EDGE_POOL_URL": place.service_url("pool")},
    "dashboards": {
        "FOREBAY_DASHBOARDS_POOL_URL": place.service_url("pool"),
        "FOREBAY_DASHBOARDS_BILLING_URL": place.service_url("billing"),
        "FOREBAY_DASHBOARDS_NAME": branding.name,
    },
}
if branding.logo:
    environments["dashboards"]["FOREBAY_DASHBOARDS_LOGO_URL"] = "/hub/logo"
if branding.help_url:
    environments["dashboards"]["FOREBAY_DASHBOARDS_HELP_URL"] = branding.help_url
metrics_token = ensure_token(place.state / "scrape-token")
for service in SERVICES:
    environments[service][f"FOREBAY_{service.upper()}_METRICS_TOKEN"] = metrics_token
accounts = Accounts.from_environment(place, os.environ)


def account_of(name: str) -> Account | None:
    """Of a login, or of one of ours (accounts.py)."""
    return None if accounts is None else Account(accounts.register.of(name), (accounts.group,), hide=accounts.hide)


service_accounts = dict.fromkeys(SERVICES, account_of(SERVICE_ACCOUNT))
if accounts is not None:
    service_accounts["pool"] = Account(accounts.services, accounts.device_users, accounts.hide, joins=accounts.namespace)
if accounts is not None and accounts.namespace is not None:
    environments["pool"]["FOREBAY_POOL_WORKER_ACCOUNT"] = json.dumps([accounts.worker_uids, accounts.workers, *accounts.device_users])

directory = configure(
    c,
    Settings(
        directory=read_directory(HERE / "hub.toml"),
        services=tuple(
            python_service(
                f"forebay_{service}",
                HERE / f"{service}.toml",
                place.url_of(service),
                environments[service],
                display=service == "dashboards",
                account=service_accounts[service],
            )
            for service in SERVICES
        ),
        database_url=f"sqlite:///{place.state}/hub.sqlite",
        metrics_token=metrics_token,
        branding=branding,
        culling=culling_of(read_file(HERE / "hub.toml"), account_of(PROXY)),
    ),
)

c.JupyterHub.bind_url = f"http://{place.address}:{place.port}"
c.JupyterHub.hub_bind_url = place.url_of("hub")
c.JupyterHub.cookie_secret_file = str(place.state / "cookie_secret")
c.JupyterHub.template_vars = {"announcement_login": f"The demo passwords are in {place.state.name}/logins.json."}

c.JupyterHub.authenticator_class = LoginsAuthenticator
c.LoginsAuthenticator.logins_file = str(place.state / "logins.json")
ensure_logins(place.state / "logins.json", directory.people)

c.JupyterHub.proxy_class = KeptTraefik
proxy_files = place.state / "proxy"
proxy_files.mkdir(exist_ok=True)
c.KeptTraefik.account = account_of(PROXY)
c.TraefikProxy.traefik_api_url = place.url_of("proxy")
c.TraefikProxy.traefik_api_username = "hub"
c.TraefikProxy.traefik_api_password = secrets.token_hex(32)
c.TraefikProxy.static_config_file = str(proxy_files / "proxy.toml")
c.TraefikFileProviderProxy.dynamic_config_file = str(proxy_files / "routes.toml")
(proxy_files / "routes.toml").unlink(missing_ok=True)  # left by a hub that was killed, it would bring back the old password
c.TraefikProxy.extra_static_config = {
    "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
    "entryPoints": {"http": {"transport": {"respondingTimeouts": {"readTimeout": "0s"}}}},
}

c.JupyterHub.spawner_class = "forebay"
c.VirtualGpuMixin.pool_url = place.service_url("pool")
c.VirtualGpuMixin.billing_url = place.service_url("billing")
if accounts is not None:
    c.LocalVirtualGpuSpawner.account_of = lambda login: account_of(slug_of(login))  # which its home has too
c.LocalVirtualGpuSpawner.notebook_prefix = str(CHECKOUT / ".venv" / "notebook")
c.LocalVirtualGpuSpawner.home_dir_template = str(place.state / "homes" / "{username}")
c.LocalVirtualGpuSpawner.log_file_template = str(place.state / "log" / "servers" / "{username}.log")
c.LocalVirtualGpuSpawner.starter_notebooks = [str(notebook) for notebook in sorted((HERE / "notebooks").glob("*.ipynb"))]
c.Spawner.default_url = "/lab"
c.Spawner.http_timeout = 60
c.Spawner.start_timeout = 60
