"""Puts the parts together: routes, the server, and its life."""

from __future__ import annotations

import asyncio
import logging
import re

from forebay_service.identity import Authenticator, HubAuthenticator
from forebay_service.peers.front import FrontServer
from forebay_service.process import listen, set_when_asked_to_stop
from tornado.web import Application

from forebay_edge.doors import Doors
from forebay_edge.passages import ROUTES, Context, NotFoundPage
from forebay_edge.settings import Settings

MESSAGE_BYTES_MAX = 1024 * 1024
"""A client of ours sends a quarter of that at a time."""
HANDSHAKE_SECONDS_MAX = 20
"""A connection on which no whole head of a request arrives for so long is closed."""

log = logging.getLogger(__name__)


class Service:
    """The running edge. Made inside an event loop; :meth:`close` ends it."""

    def __init__(self, settings: Settings, authenticator: Authenticator) -> None:
        shown = settings.tls()
        given = {"context": Context(settings, authenticator, Doors(settings))}
        application = Application(
            [(re.escape(settings.prefix) + path, handler, given) for path, handler in ROUTES],
            default_handler_class=NotFoundPage,
            default_handler_args=given,
            websocket_max_message_size=MESSAGE_BYTES_MAX,
            log_function=lambda handler: None,
        )
        bounds = {"share": settings.peers_share, "connections_max": settings.connections_max}
        waits = {"idle_connection_timeout": HANDSHAKE_SECONDS_MAX, "body_timeout": HANDSHAKE_SECONDS_MAX}
        self._server = FrontServer(application, ssl_options=shown and shown.context, max_body_size=0, **bounds, **waits)
        sockets = listen(settings.host, settings.port)
        self._server.add_sockets(sockets)
        self.port: int = sockets[0].getsockname()[1]
        log.info("the edge serves", extra={"action": "service_started", "host": settings.host, "port": self.port})

    async def close(self) -> None:
        """Stops listening, and ends all streams: clients make them again where another edge answers."""
        self._server.stop()
        await self._server.close_all_connections()
        log.info("the edge stopped", extra={"action": "service_stopped", "port": self.port})


async def serve(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT. Raises SettingsError."""
    stop = asyncio.Event()
    set_when_asked_to_stop(stop)
    service = Service(settings, HubAuthenticator(settings.hub_api_url, own_token=settings.hub_token))
    await stop.wait()
    await service.close()
