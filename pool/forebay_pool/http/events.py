"""``GET api/events``: what changes in the pool, as server-sent events."""

from __future__ import annotations

import asyncio

from forebay_service.identity import COMPUTE, OPERATE, SERVICE
from tornado.iostream import StreamClosedError

from forebay_pool.errors import RequestRefused
from forebay_pool.http.handler import Api, sees_all
from forebay_pool.views.event_stream import Watcher

KEEP_ALIVE_SECONDS = 15.0
"""A silent event stream gets a comment this often, so that proxies keep it."""


class Events(Api):
    """``GET api/events``: server-sent events."""

    watcher: Watcher | None = None

    async def get(self) -> None:
        identity = await self.bearer(COMPUTE, SERVICE, OPERATE)
        board = self.shell.board
        if board.full:
            raise RequestRefused(503, "limit", "Too many event streams are open; close one.")
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-cache")
        self.set_header("X-Accel-Buffering", "no")
        self.watcher = watcher = board.watch(None if sees_all(identity) else (identity.tenant or "", identity.name))
        try:
            self.write(": forebay\n\n")
            await self.flush()
            while not watcher.behind:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        text = await watcher.events.get()
                except TimeoutError:
                    text = ": still here\n\n"
                self.write(text)
                await self.flush()
        except StreamClosedError:
            return
        finally:
            board.leave(watcher)

    def on_connection_close(self) -> None:
        if self.watcher is not None:
            self.watcher.let_go()
