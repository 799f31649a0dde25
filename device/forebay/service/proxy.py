"""The HTTP proxy by which a network lets programs out, as ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY`` say.

HTTP calls go by ``urllib``, which reads the same variables. Links and command streams go through a tunnel (RFC 9110, section 9.3.6).
"""

from __future__ import annotations

import base64
import http.client
import socket
import urllib.request
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from forebay.errors import NotConfigured
from forebay.service import LOOPBACK_HOSTS

SECURE = ("https", "wss")
PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


@dataclass(frozen=True)
class Proxy:
    """A proxy that is spoken to in clear."""

    host: str
    port: int
    authorization: str = ""
    """The value of the header Proxy-Authorization (RFC 7617); none is sent where it is empty."""

    @property
    def address(self) -> str:
        """As a command stream takes it, HOST:PORT."""
        return f"{self.host}:{self.port}"

    def tunnel(self, url: str, seconds: float) -> socket.socket:
        """A socket that the proxy has connected to the host of ``url``. Raises OSError, http.client.HTTPException."""
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(self.host, self.port, timeout=seconds)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        headers = {"Host": f"{host}:{port_of(parts)}"}  # which Python 3.11 leaves out
        headers |= {"Proxy-Authorization": self.authorization} if self.authorization else {}
        connection.set_tunnel(parts.hostname or "", port_of(parts), headers)
        connection.connect()
        return connection.sock


def port_of(parts: SplitResult) -> int:
    """The port of an address, or that of its scheme."""
    return parts.port or PORTS[parts.scheme]


def proxy_for(url: str) -> Proxy | None:
    """What is to stand between this process and an address; None: nothing. Raises NotConfigured."""
    parts = urlsplit(url)
    if parts.hostname in LOOPBACK_HOSTS or urllib.request.proxy_bypass(f"{parts.hostname}:{port_of(parts)}"):
        return None
    scheme = "https" if parts.scheme in SECURE else "http"
    said = urllib.request.getproxies().get(scheme)
    return read(f"{scheme.upper()}_PROXY", said) if said else None


def read(variable: str, said: str) -> Proxy:
    """What a variable says. Raises NotConfigured."""
    wrong = NotConfigured(f"{variable} names no proxy that can be used; give one like http://proxy.example.org:3128.")
    try:
        parts = urlsplit(said if "://" in said else f"http://{said}")
        port = parts.port or PORTS["http"]
    except ValueError:
        raise wrong from None
    if parts.scheme != "http" or not parts.hostname:
        raise wrong  # which does not repeat a password
    if parts.username is None:
        return Proxy(parts.hostname, port)
    credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(parts.hostname, port, f"Basic {base64.b64encode(credentials.encode()).decode()}")
