"""The server of tools over HTTP (the protocol's *streamable HTTP*): whoever asks shows the agent's token with each request."""

from __future__ import annotations

import hmac
import os
import re
import signal
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from forebay.errors import ForebayError

PATH = "/mcp"
LOOPBACK = "127.0.0.1"
ADDRESS = re.compile(r"(?:(?P<host>[0-9A-Za-z.-]+|\[[0-9a-fA-F:.]+\]):)?(?P<port>[0-9]{1,5})")
BODY_BYTES_MAX = 4 << 20
"""Of a request: code of a run has 200,000 characters at most."""
SESSIONS_MAX = 64
SESSION_IDLE_SECONDS = 3600.0
"""A session of the protocol that nobody uses for so long is forgotten. Kernels are the server's, and stay."""
REFUSED = b'{"error": {"code": "unauthorized", "message": "Show the token that this server has: Authorization: Bearer TOKEN."}}'

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class TokenGate:
    """Lets requests through to the app that show the token; the others learn nothing but that."""

    def __init__(self, app: App, token: str) -> None:
        self._app = app
        self._expected = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._is_shown(scope)):
            return await self._app(scope, receive, send)
        if scope["type"] == "http":
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSED})

    def _is_shown(self, scope: Scope) -> bool:
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        kind, _, token = (shown[0] if len(shown) == 1 else b"").partition(b" ")
        return kind.lower() in (b"bearer", b"token") and hmac.compare_digest(token.strip(), self._expected)


def address_of(text: str) -> tuple[str, int]:
    """``PORT`` or ``HOST:PORT``; 0 takes a free port. Raises ForebayError."""
    found = ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise ForebayError(f"{text!r} is no address to listen at; write a port, or HOST:PORT.")
    return (found["host"] or LOOPBACK).strip("[]"), int(found["port"])


def serve(server: MCPServer[None], address: str, token: str, told: Callable[[str], None]) -> None:
    """Until it is told to end (SIGTERM, SIGINT). ``told`` gets the URL once it listens. Raises ForebayError."""
    host, port = address_of(address)
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=BODY_BYTES_MAX,
        session_idle_timeout=SESSION_IDLE_SECONDS,
        max_sessions=SESSIONS_MAX,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # no page of a browser's knows the token
    )
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ForebayError(f"It cannot listen at {host}, port {port}: {os.strerror(error.errno or 0)}.") from None
    with listener:
        shown = f"[{host}]" if ":" in host else host
        told(f"http://{shown}:{listener.getsockname()[1]}{PATH}")
        config = uvicorn.Config(TokenGate(app, token), log_level="warning", access_log=False, timeout_graceful_shutdown=5)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # uvicorn ends by them, and raises them anew once it has
        uvicorn.Server(config).run(sockets=[listener])
