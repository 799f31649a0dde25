"""Notebook servers that nobody uses are stopped, by ``jupyterhub-idle-culler``, a service that the hub starts.

The pool tells the hub who computes, waits for a device, or has tensors that are held (``forebay_pool/jobs/activity.py``). Servers of
jobs are the pool's own to stop. A server that is stopped ends its kernels; files stay.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from forebay_service.account import Account
from forebay_service.errors import SettingsError

from forebay_hub.roles import CULLER

TIMEOUT_SECONDS_MIN = 600
"""The pool tells who is active every two minutes, and servers themselves every five."""


@dataclass(frozen=True)
class Culling:
    """A server without use for ``timeout_seconds`` is stopped, whatever it does after ``max_age_seconds`` (0: never). ``account``: what the
    service runs as, where the hub is root. ``url``: of the hub's API, where the service would not reach the one that it is told."""

    enabled: bool = True
    timeout_seconds: int = 3600
    every_seconds: int = 300
    max_age_seconds: int = 0
    account: Account | None = None
    url: str = ""

    @property
    def spec(self) -> dict[str, Any]:
        """The service as an entry of ``JupyterHub.services``."""
        options = {"timeout": self.timeout_seconds, "cull-every": self.every_seconds, "max-age": self.max_age_seconds}
        words = [f"--{name}={value}" for name, value in options.items()]
        words += [f"--url={self.url}"] if self.url else []
        command = [sys.executable, "-m", "jupyterhub_idle_culler", *words, "--cull-named-servers=False"]
        kept = [sys.executable, "-m", "forebay_service.processes.supervisor", "the service culler", *command]
        return {"name": CULLER, "command": self.account.command(kept) if self.account else kept, "display": False}


NEVER = Culling(enabled=False)


def culling_of(content: Mapping[str, Any], account: Account | None = None) -> Culling:
    """What the table ``[culling]`` of ``hub.toml`` says. Raises SettingsError."""
    given = content.get("culling", {})
    usual = Culling()
    known = {field.name: getattr(usual, field.name) for field in fields(Culling) if field.name not in ("account", "url")}
    if not isinstance(given, Mapping):
        raise SettingsError("culling must be a table: [culling]")
    for name, value in given.items():
        if name not in known:
            raise SettingsError(f"[culling] has the unknown setting {name!r}; known are {', '.join(sorted(known))}")
        if type(value) is not type(known[name]) or value < 0:
            raise SettingsError(f"culling.{name} cannot be {value!r}; it is like {known[name]!r}")
    made = Culling(**{**known, **given}, account=account)
    if made.timeout_seconds < TIMEOUT_SECONDS_MIN or made.every_seconds < 1:
        raise SettingsError(f"culling.timeout_seconds must be {TIMEOUT_SECONDS_MIN} or more, and every_seconds 1 or more")
    return made
