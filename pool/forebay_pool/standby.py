"""A pool that waits to lead: it says who it is, and sends everybody else away until the leader is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from forebay_service.handler import HealthHandler, NotFoundHandler, SafeHandler
from forebay_service.process import listen
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError
from tornado.httpserver import HTTPServer
from tornado.web import Application

from forebay_pool.errors import RequestRefused, StoreUnavailable
from forebay_pool.store.leadership import Leadership
from forebay_pool.views.metrics import leader_family

if TYPE_CHECKING:
    from forebay_pool.settings import Settings
    from forebay_pool.store.database import Store

POLL_SECONDS = 0.25
WAITING = "This pool waits to take over; another one leads."

log = logging.getLogger(__name__)


class _Health(HealthHandler):
    """``GET health``."""

    async def state(self) -> dict[str, Any]:
        return {"role": "follower"}


class _Metrics(SafeHandler):
    """``GET metrics``: that it waits, and nothing else; so for everybody."""

    def get(self) -> None:
        registry = CollectorRegistry()
        registry.register(_Waits())
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.write(generate_latest(registry))


class _Waits(Collector):
    def collect(self) -> list[GaugeMetricFamily]:
        return [leader_family(False)]


class _Elsewhere(NotFoundHandler):
    """Everything else: the leader answers it."""

    context: Follower

    def refusal(self) -> RequestRefused:
        leader = self.context.leader_url
        where = f" Ask {leader}." if leader else " Try again in a second."
        return RequestRefused(503, "follower", WAITING + where)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        if self.context.leader_url:
            self.set_header("Location", self.context.leader_url + str(self.request.uri).removeprefix(self.context.settings.prefix))
        super().write_error(status_code, **kwargs)


class Follower:
    """Serves as a follower for as long as another pool leads."""

    def __init__(self, settings: Settings, store: Store, leadership: Leadership) -> None:
        self.settings = settings
        self.leader_url = ""
        self._store = store
        self._leadership = leadership

    async def until_leading(self, stopped: asyncio.Event) -> bool:
        """Whether this pool leads; False once it is stopped. Raises StoreUnavailable if the database cannot be reached at the start."""
        if await asyncio.to_thread(self._leadership.take):
            return True
        await self._look()
        settings: dict[str, Any] = {"default_handler_class": _Elsewhere, "default_handler_args": {"context": self}}
        base = self.settings.prefix
        routes: list[Any] = [(f"{base}health", _Health, {"context": self}), (f"{base}metrics", _Metrics)]
        shown = self.settings.tls()
        server = HTTPServer(Application(routes, log_function=lambda _: None, **settings), ssl_options=shown and shown.context)
        server.add_sockets(listen(self.settings.host, self.settings.port))
        log.info("another pool leads: this one waits at %s", self.settings.own_url, extra={"action": "follows"})
        print(f"forebay-pool waits at {self.settings.own_url}", flush=True)
        try:
            return await self._wait(stopped)
        finally:
            server.stop()
            await server.close_all_connections()

    async def _wait(self, stopped: asyncio.Event) -> bool:
        while not stopped.is_set():
            await self._look()
            try:
                if await asyncio.to_thread(self._leadership.take):
                    return True
            except StoreUnavailable as error:
                log.warning("%s", error, extra={"action": "leadership_unsure"})
            await asyncio.sleep(POLL_SECONDS)
        return False

    async def _look(self) -> None:
        """Finds out who leads, if the database can say."""
        with contextlib.suppress(SQLAlchemyError):
            self.leader_url = await asyncio.to_thread(self._store.leader_url)
