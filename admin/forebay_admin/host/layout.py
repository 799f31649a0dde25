"""Where everything of an installation on one host lies: settings, secrets, state, units."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

LISTENERS = ("hub", "proxy", "pool", "billing", "dashboards", "edge")
"""Who listens on the loopback interface, on ``first_port`` and the ports after it, in this order (``forebay_hub.host``)."""


@dataclass(frozen=True)
class Layout:
    """``root`` is ``/`` of a real installation. ``prefix`` is the virtual environment that the services are installed in."""

    root: Path
    prefix: Path = Path(sys.prefix)

    @property
    def settings(self) -> Path:
        return self.root / "etc" / "forebay"

    @property
    def state(self) -> Path:
        return self.root / "var" / "lib" / "forebay"

    @property
    def sockets(self) -> Path:
        """Of workers: every program that computes passes this folder."""
        return self.root / "run" / "forebay"

    @property
    def units(self) -> Path:
        return self.root / "etc" / "systemd" / "system"

    @property
    def pool_drop_in(self) -> Path:
        """What the pool's unit has beside where this host is the head of a cluster: ``forebay node head`` lays it."""
        return self.units / "forebay-pool.service.d" / "ray.conf"

    @property
    def accounts(self) -> Path:
        return self.root / "etc" / "sysusers.d" / "forebay.conf"

    def credentials(self, unit: str) -> Path:
        """Where systemd lays what a unit loads with ``LoadCredential``."""
        return self.root / "run" / "credentials" / f"{unit}.service"

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"
