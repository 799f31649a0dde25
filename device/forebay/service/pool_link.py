"""The WebSockets of the pool, the session link and that of files, to the first pool that takes them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from http.client import HTTPException

from forebay_wire import messages
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as open_socket

from forebay.errors import PoolRefused, PoolUnreachable
from forebay.service import Service
from forebay.service.proxy import proxy_for

SESSION = "api/session"
PING_SECONDS = 20.0
SILENCE_SECONDS_MAX = 60.0
"""The host of a pool that acknowledges no ping for so long is gone. The kernel watches for it: user code that holds the
interpreter's lock for minutes would keep us from reading an answer that is there."""
CLOSE_SECONDS_MAX = 2.0

NOT_OUTSIDE = {messages.GROUP_HEADER: "Processes that compute together", messages.RUNS_HEADER: "Processes beside a device (`forebay exec`)"}
"""What cannot be had from outside, by the header that asks for it."""


def connect(
    service: Service, headers: Mapping[str, str], open_seconds: float, path: str = SESSION, bytes_max: int = messages.MESSAGE_BYTES_MAX
) -> ClientConnection:
    """A WebSocket, of which no message is longer than ``bytes_max``, to the first of the service's pools that takes it.

    Raises PoolUnreachable, PoolRefused, NotConfigured.
    """
    for header, what in NOT_OUTSIDE.items():
        if service.outside and header in headers:
            raise PoolRefused(f"{what} cannot be had from outside of the installation; use a notebook of the hub, or a job.", "outside")
    *others, last = service.each()
    for one in others:
        with contextlib.suppress(PoolUnreachable):
            return _connect_to(one, headers, open_seconds, path, bytes_max)
    return _connect_to(last, headers, open_seconds, path, bytes_max)


def _connect_to(service: Service, headers: Mapping[str, str], open_seconds: float, path: str, bytes_max: int) -> ClientConnection:
    outside = {messages.OUTSIDE_HEADER: "1"} if service.outside else {}
    url = service.link_url(path)
    proxy = proxy_for(url)
    try:
        connection = open_socket(
            url,
            additional_headers={**headers, **outside, "Authorization": service.authorization},
            sock=None if proxy is None else proxy.tunnel(url, open_seconds),
            proxy=None,
            compression=None,
            open_timeout=open_seconds,
            ping_interval=PING_SECONDS,
            ping_timeout=None,
            close_timeout=CLOSE_SECONDS_MAX,
            max_size=bytes_max,
        )
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            with contextlib.suppress(OSError):  # it may be closed already: why is among what came
                connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_SECONDS_MAX * 1000))
        return connection
    except InvalidStatus as error:
        status = error.response.status_code
        if status in (401, 403):
            raise service.token_refused(status) from None
        raise service.unreachable(f"it answered with HTTP status {status}") from None
    except (OSError, HTTPException, InvalidHandshake, InvalidURI) as error:
        raise service.unreachable(error or type(error).__name__) from None
