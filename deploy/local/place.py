"""Where a local installation lives: its folders, its ports, its addresses. Plain standard library: runs before anything is installed."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SERVICES = ("pool", "billing", "dashboards", "edge")
LISTENERS = ("public", "hub", "proxy", *SERVICES)
"""Who listens, on FOREBAY_PORT and the ports after it, in this order."""


class PlaceError(Exception):
    """A setting that cannot be used; the message says what to change."""


@dataclass(frozen=True)
class Place:
    """``state`` holds everything that outlives a restart; ``address`` is what the public port binds to."""

    state: Path
    address: str
    port: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Place:
        """Reads FOREBAY_STATE, FOREBAY_ADDRESS and FOREBAY_PORT. Raises PlaceError."""
        port = environment.get("FOREBAY_PORT") or "8000"
        highest = 65535 - len(LISTENERS) + 1
        if not port.isdecimal() or not 1024 <= int(port) <= highest:
            raise PlaceError(f"FOREBAY_PORT={port} cannot be used; give a number from 1024 to {highest}")
        state = Path(environment.get("FOREBAY_STATE") or CHECKOUT / "var").expanduser().resolve()
        return cls(state, environment.get("FOREBAY_ADDRESS") or "127.0.0.1", int(port))

    @property
    def environment(self) -> dict[str, str]:
        """The same settings for a child process."""
        return {"FOREBAY_STATE": str(self.state), "FOREBAY_ADDRESS": self.address, "FOREBAY_PORT": str(self.port)}

    def port_of(self, listener: str) -> int:
        return self.port + LISTENERS.index(listener)

    def url_of(self, listener: str) -> str:
        """Address of a listener on this machine, without a slash at its end. The services listen on loopback only."""
        host = self.address if listener == "public" and self.address != "0.0.0.0" else "127.0.0.1"  # noqa: S104 - compared, not bound
        return f"http://{host}:{self.port_of(listener)}"

    def service_url(self, service: str) -> str:
        """Address of a service past the proxy, with its prefix."""
        return f"{self.url_of(service)}/services/{service}/"

    def taken(self) -> list[str]:
        """The listeners whose port another program holds."""
        return [name for name in LISTENERS if _is_taken(self.address if name == "public" else "127.0.0.1", self.port_of(name))]


def _is_taken(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False
