"""Forebay's services as JupyterHub has them: started by the hub or by others, reached through its proxy, signed in with its OAuth."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_service.account import Account
from forebay_service.errors import SettingsError

from forebay_hub.roles import OAUTH_SCOPES

SERVICES = ("pool", "billing", "dashboards", "edge")
START_TIMEOUT_SECONDS = 60
"""A service that has not answered by then is reported in the hub's log."""


@dataclass(frozen=True)
class ManagedService:
    """One service process. ``url`` is where it listens; ``display`` lists it in the hub's menu.

    Without an account it runs as the hub does.
    """

    name: str
    url: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    display: bool = False
    account: Account | None = None

    @property
    def spec(self) -> dict[str, Any]:
        """The service as an entry of ``JupyterHub.services``."""
        kept = [sys.executable, "-m", "forebay_service.processes.supervisor", f"the service {self.name}", *self.command]
        return {
            "name": self.name,
            "url": self.url,
            "command": self.account.command(kept) if self.account else kept,
            "environment": dict(self.environment),
            "display": self.display,
            "timeout": START_TIMEOUT_SECONDS,
            "oauth_no_confirm": True,
            "oauth_client_allowed_scopes": list(OAUTH_SCOPES),
        }


@dataclass(frozen=True)
class ExternalService:
    """A service that others start, as systemd does: the hub routes to it, and knows it by its token."""

    name: str
    url: str
    token: str
    display: bool = False

    @property
    def spec(self) -> dict[str, Any]:
        """The service as an entry of ``JupyterHub.services``."""
        return {
            "name": self.name,
            "url": self.url,
            "api_token": self.token,
            "display": self.display,
            "oauth_no_confirm": True,
            "oauth_client_allowed_scopes": list(OAUTH_SCOPES),
        }


def python_service(
    package: str, config: Path, url: str, environment: Mapping[str, str], *, display: bool = False, account: Account | None = None
) -> ManagedService:
    """A service of ours: ``python -m forebay_NAME --config FILE``."""
    command = (sys.executable, "-m", package, "--config", str(config))
    return ManagedService(package.removeprefix("forebay_"), url, command, environment, display, account)


def external_services(
    names: Sequence[str], address_of: Callable[[str], str], environment: Mapping[str, str]
) -> tuple[ExternalService, ...]:
    """Those of ours where others start them; the environment has their tokens. Raises SettingsError."""
    tokens = {name: secret(environment, f"FOREBAY_HUB_TOKEN_OF_{name.upper()}") for name in names}
    return tuple(ExternalService(name, address_of(name), tokens[name], name == "dashboards") for name in names)


def secret(environment: Mapping[str, str], name: str) -> str:
    """Raises SettingsError."""
    if not environment.get(name):
        raise SettingsError(f"{name} is not set; it is one of the hub's secrets (forebay-hub's secrets/hub.env, or the chart's Secret)")
    return environment[name]
