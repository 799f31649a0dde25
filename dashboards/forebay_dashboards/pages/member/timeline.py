"""*My usage*: which of one's own cells and processes held a device when."""

from __future__ import annotations

import time
from operator import attrgetter

from forebay_service.languages import Text

from forebay_dashboards.pages.member.usage import EXPORT_RECORDS, UsageView
from forebay_dashboards.pages.nodes import window_of
from forebay_dashboards.rows.pool import Timeline
from forebay_dashboards.tables.timeline import LENGTHS_SECONDS, Window, gantt, labels_of, own_timeline
from forebay_dashboards.tables.visible import visible_leases
from forebay_dashboards.upstream.sections import Section, attempt

HOUR_NS = 3_600 * 10**9
"""The longest that a record lasts."""


class MyTimelinePage(UsageView):
    """``GET usage/timeline?q=&page=&ms=&until=``, and its fragment ``usage/timeline/chart``; as the operator's, of own leases alone."""

    page = "usage_timeline"

    async def get(self, part: str | None = None) -> None:
        window = window_of(self)
        known = await attempt(self._ask(window), Text("When devices were held"))
        content = known.content or Timeline(since_ns=window.since_ns, until_ns=window.until_ns, more=False, stretches=())
        shown = labels_of(content, window)
        rows = [(label, "") for label in shown.rows]
        chart = None if known.content is None else gantt(rows, content, window, self.now_ns, self.zone, attrgetter("flavor"))
        values = {"address": "usage/timeline", "window": window, "shown": shown, "gantt": Section(chart, known.problem)}
        template = "fragments/timeline.html" if part else "my_timeline.html"
        self.show(template, now_ms=self.now_ns // 10**6, lengths=LENGTHS_SECONDS, **values)

    async def _ask(self, window: Window) -> Timeline:
        since_ns, until_ns, asks = max(0, window.since_ns - HOUR_NS), window.until_ns, self.services.billing.usage
        found = await asks(self.token, **self.mine, since_ns=since_ns, until_ns=until_ns, limit=EXPORT_RECORDS)
        running = visible_leases(self.services.feed.pool_copy, self.view, self.visitor, time.monotonic_ns())
        return own_timeline(found.records, running, found.next is not None, window, self.now_ns)
