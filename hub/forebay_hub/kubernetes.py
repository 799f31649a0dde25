"""JupyterHub in a cluster: what the chart (``deploy/helm``) lays beside its configuration, and in its environment.

``chart.json`` says where everything is, and has the traits that the chart sets; ``hub.toml`` says who signs in; secrets are variables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from forebay_service.errors import SettingsError

from forebay_hub.branding import read_branding
from forebay_hub.configuration import Settings, configure, let_groups_place
from forebay_hub.culling import culling_of
from forebay_hub.groups import read_groups
from forebay_hub.services import SERVICES, external_services, secret
from forebay_hub.tenants import read_directory, read_file


def configure_in_cluster(c: Any, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Writes all of it into a JupyterHub configuration object. ``folder`` holds ``chart.json`` and ``hub.toml``. Raises SettingsError."""
    addresses, traits = _read(folder / "chart.json")
    services = external_services(SERVICES, addresses.__getitem__, environment)
    database_url, metrics_token = (secret(environment, f"FOREBAY_HUB_{name}") for name in ("DATABASE_URL", "METRICS_TOKEN"))
    people = folder / "hub.toml"
    culling = replace(culling_of(read_file(people)), url=_loopback(traits["JupyterHub"]["hub_bind_url"]))
    settings = Settings(read_directory(people), services, database_url, metrics_token, read_branding(people), culling, read_groups(people))
    configure(c, settings)
    c.JupyterHub.authenticator_class = authenticator = traits["JupyterHub"].pop("authenticator_class")
    let_groups_place(c, settings, authenticator)
    c.JupyterHub.spawner_class = "forebay-kube"
    c.JupyterHub.upgrade_db = True  # JupyterHub's own schema; no other hub runs meanwhile
    c.ConfigurableHTTPProxy.should_start = False
    c.ConfigurableHTTPProxy.auth_token = secret(environment, "CONFIGPROXY_AUTH_TOKEN")
    c.JupyterHub.cleanup_servers = c.JupyterHub.cleanup_proxy = False
    if environment.get("FOREBAY_HUB_LOG_FORMAT") == "json":
        c.JupyterHub.logging_config = {"formatters": {"console": {"class": "forebay_service.process.JsonLines"}}}
    for name, values in traits.items():
        c[name].update(values)


def _loopback(bind_url: str) -> str:
    """The hub's API for what runs in its own pod, which no policy lets reach the hub's Service."""
    return f"http://127.0.0.1:{urlsplit(bind_url).port}/hub/api"


def _read(file: Path) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Addresses of the services, and traits by class. Raises SettingsError."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return content["services"], content["traits"]
    except (OSError, ValueError, KeyError) as error:
        raise SettingsError(f"{file} is not what the chart writes ({error!r})") from None
