"""The base of all endpoints that are WebSockets."""

from __future__ import annotations

from typing import Any

from tornado.websocket import WebSocketHandler

from forebay_pool.errors import RequestRefused
from forebay_pool.http.handler import Api

WEBSOCKET_VERSION = "13"
"""RFC 6455's, the only one that there is."""


class SocketApi(WebSocketHandler, Api):
    """Opens WebSockets, and refuses what asks for none."""

    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Refuses as all of the pool does what Tornado would refuse in plain text: a request that opens no WebSocket (RFC 6455, 4.2.1)."""
        headers = self.request.headers
        options = {option.strip().lower() for option in headers.get("Connection", "").split(",")}
        upgrades = "upgrade" in options and headers.get("Upgrade", "").lower() == "websocket"
        if not upgrades or headers.get("Sec-WebSocket-Version") != WEBSOCKET_VERSION or not headers.get("Sec-WebSocket-Key"):
            raise RequestRefused(426, "upgrade_required", f"{self.request.path} is a WebSocket: connect to it as one.")
        await super().get(*args, **kwargs)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Says with every refusal, as RFC 9110 (section 7.8) asks for with 426, what is spoken here."""
        self.set_header("Upgrade", "websocket")
        self.set_header("Connection", "Upgrade")
        self.set_header("Sec-WebSocket-Version", WEBSOCKET_VERSION)
        super().write_error(status_code, **kwargs)
