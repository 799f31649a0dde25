"""``GET events?view=``: tells one browser, by server-sent events, which parts of its page went out of date."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import cast

from forebay_service.languages import Text
from tornado.iostream import StreamClosedError

from forebay_dashboards.access import View
from forebay_dashboards.http.handler import PageHandler, Problem
from forebay_dashboards.live.browsers import AudienceFull, Listener
from forebay_dashboards.live.event_stream import SIGN_OF_LIFE, encode
from forebay_dashboards.metrics import BROWSERS_DROPPED

VIEWS = ("usage", "tenant", "operator")


class EventsPage(PageHandler):
    """One open stream. A browser that does not read is dropped; when it comes back, it refreshes everything."""

    page = "events"
    counted_seconds = False
    listener: Listener | None = None

    async def prepare(self) -> None:
        view = self.get_query_argument("view")
        if view not in VIEWS:
            sentence = Text("“%(name)s” is not a page with live values.", name=view[:20])
            raise Problem(HTTPStatus.BAD_REQUEST, Text("That cannot be done"), sentence)
        self.view = cast(View, view)
        await super().prepare()

    async def get(self) -> None:
        browsers = self.services.browsers
        try:
            self.listener = browsers.join(self.view, self.visitor)
        except AudienceFull as error:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, Text("Too many open pages"), error.text) from None
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self.set_header("X-Accel-Buffering", "no")
        self.request.connection.stream.set_nodelay(True)  # type: ignore[union-attr] # HTTP/1 connections have a stream
        try:
            await self._tell(self.listener)
        except StreamClosedError:
            pass
        except TimeoutError:
            BROWSERS_DROPPED.inc()
            self.request.connection.stream.close()  # type: ignore[union-attr] # as above
        finally:
            browsers.leave(self.listener)

    def on_connection_close(self) -> None:
        if self.listener is not None:
            self.listener.leave()

    async def _tell(self, listener: Listener) -> None:
        settings = self.services.settings
        self.write(encode("begin", self.view))
        while not listener.gone:
            await asyncio.wait_for(self.flush(), settings.browser_stall_seconds)
            topics = await listener.changes(settings.browser_quiet_seconds)
            for topic in topics:
                self.write(encode(topic, "changed"))
            if not topics:
                self.write(SIGN_OF_LIFE)
            else:
                await asyncio.wait_for(self.flush(), settings.browser_stall_seconds)
                await asyncio.sleep(settings.update_seconds)
