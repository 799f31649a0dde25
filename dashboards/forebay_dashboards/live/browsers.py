"""The browsers that listen, and what each still has to be told.

A browser is told *that* a topic changed, never *what*: it then fetches the fragment, and is asked again who it is. So what waits for
a browser is a set of topics, which cannot grow, however slow the browser.
"""

from __future__ import annotations

import asyncio
from typing import get_args

from forebay_service.identity import Identity
from forebay_service.languages import Text

from forebay_dashboards.access import Owner, View, may_open, may_see
from forebay_dashboards.errors import PageError
from forebay_dashboards.live.pool_copy import Topic
from forebay_dashboards.metrics import BROWSERS, UPDATES

TOPICS: tuple[Topic, ...] = get_args(Topic)


class AudienceFull(PageError):
    """As many browsers listen as may."""


class Listener:
    """One open event stream."""

    def __init__(self, view: View, visitor: Identity) -> None:
        self.view = view
        self.visitor = visitor
        self._topics: set[Topic] = set()
        self._wake = asyncio.Event()
        self.gone = False

    def tell(self, topic: Topic) -> None:
        """Notes that a topic changed."""
        self._topics.add(topic)
        self._wake.set()

    def leave(self) -> None:
        """Notes that the browser is gone; wakes whoever waits."""
        self.gone = True
        self._wake.set()

    async def changes(self, quiet_seconds: float) -> list[Topic]:
        """The topics that changed since the last call, waiting for one; none after ``quiet_seconds``."""
        try:
            await asyncio.wait_for(self._wake.wait(), quiet_seconds)
        except TimeoutError:
            return []
        self._wake.clear()
        found, self._topics = self._topics, set()
        return sorted(found)


class Browsers:
    """All open event streams."""

    def __init__(self, listeners_max: int) -> None:
        self._listeners: set[Listener] = set()
        self._listeners_max = listeners_max

    def join(self, view: View, visitor: Identity) -> Listener:
        """A new listener, which :meth:`leave` must be called for. Raises AudienceFull."""
        if len(self._listeners) >= self._listeners_max:
            raise AudienceFull(
                Text("%(count)s pages are open already. The figures on this page are right, but not live.", count=self._listeners_max)
            )
        listener = Listener(view, visitor)
        self._listeners.add(listener)
        BROWSERS.labels(view).inc()
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.remove(listener)
        BROWSERS.labels(listener.view).dec()

    def tell(self, topic: Topic, owner: Owner) -> None:
        """Tells those whose page shows facts of ``owner``."""
        for listener in self._listeners:
            if may_see(listener.view, listener.visitor, owner):
                listener.tell(topic)
                UPDATES.labels(topic).inc()

    def tell_all(self, topic: Topic) -> None:
        """Tells everybody: for news that carries no one's data."""
        for listener in self._listeners:
            if may_open(listener.view, listener.visitor):
                listener.tell(topic)
                UPDATES.labels(topic).inc()

    def close(self) -> None:
        """Ends every stream: the service stops."""
        for listener in self._listeners:
            listener.leave()

    def __len__(self) -> int:
        return len(self._listeners)
