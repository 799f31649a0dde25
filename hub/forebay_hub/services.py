"""Forebay's services as JupyterHub runs them: started by the hub, reached through its proxy, signed in with its OAuth."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_hub.roles import OAUTH_SCOPES

START_TIMEOUT_SECONDS = 60
"""A service that has not answered by then is reported in the hub's log."""


@dataclass(frozen=True)
class ManagedService:
    """One service process. ``url`` is where it listens; ``display`` lists it in the hub's menu."""

    name: str
    url: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    display: bool = False

    @property
    def spec(self) -> dict[str, Any]:
        """The service as an entry of ``JupyterHub.services``."""
        return {
            "name": self.name,
            "url": self.url,
            "command": [sys.executable, "-m", "forebay_hub.keeper", f"the service {self.name}", *self.command],
            "environment": dict(self.environment),
            "display": self.display,
            "timeout": START_TIMEOUT_SECONDS,
            "oauth_no_confirm": True,
            "oauth_client_allowed_scopes": list(OAUTH_SCOPES),
        }


def python_service(package: str, config: Path, url: str, environment: Mapping[str, str], *, display: bool = False) -> ManagedService:
    """A service of ours: ``python -m forebay_NAME --config FILE``."""
    command = (sys.executable, "-m", package, "--config", str(config))
    return ManagedService(package.removeprefix("forebay_"), url, command, environment, display)
