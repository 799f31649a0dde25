"""*Operator*: the map of devices by model and node, and who held which when."""

from __future__ import annotations

import time
from operator import attrgetter

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError
from forebay_dashboards.http.handler import PageHandler, not_so
from forebay_dashboards.rows.pool import Timeline
from forebay_dashboards.tables.fleet import fleet
from forebay_dashboards.tables.overview import USES
from forebay_dashboards.tables.table import pace_ms
from forebay_dashboards.tables.timeline import LENGTHS_SECONDS, Window, devices_of, gantt, read_window
from forebay_dashboards.upstream.sections import Section, attempt

TIMELINE_ARGUMENTS = ("q", "page", "ms", "until")


def window_of(handler: PageHandler) -> Window:
    """What the address of a timeline asks for. Raises Problem."""
    try:
        return read_window({name: handler.get_query_argument(name, "") for name in TIMELINE_ARGUMENTS}, handler.now_ns)
    except FormError as error:
        raise not_so(error) from None


class NodesPage(PageHandler):
    """``GET operator/nodes?q=``, and its fragment ``operator/nodes/map``."""

    view: View = "operator"
    page = "operator_nodes"

    async def get(self, part: str | None = None) -> None:
        begun = time.process_time()
        search = " ".join(self.get_query_argument("q", "")[:200].split())
        template = "operator_nodes.html" if part is None else "fragments/device_map.html"
        body = self.rendered(template, fleet=fleet(self.services.feed.pool_copy, search), search=search, uses=USES)
        self.set_header("X-Pace-Milliseconds", str(pace_ms(time.process_time() - begun)))
        self.finish(body)


class TimelinePage(PageHandler):
    """``GET operator/timeline?q=&page=&ms=&until=``, and its fragment ``operator/timeline/chart``: ``ms`` milliseconds up to the Unix time
    ``until`` in milliseconds, else up to now.
    """

    view: View = "operator"
    page = "operator_timeline"

    async def get(self, part: str | None = None) -> None:
        window = window_of(self)
        shown = devices_of(self.services.feed.pool_copy.seen_devices(), window)
        known = await self._ask([device.device for device in shown.rows], window)
        rows = [(device.device, device.model) for device in shown.rows]
        whose = attrgetter("tenant")
        chart = None if known.content is None else gantt(rows, known.content, window, self.now_ns, self.zone, whose)
        values = {"address": "operator/timeline", "window": window, "shown": shown, "gantt": Section(chart, known.problem)}
        template = "fragments/timeline.html" if part else "operator_timeline.html"
        self.show(template, now_ms=self.now_ns // 10**6, lengths=LENGTHS_SECONDS, **values)

    async def _ask(self, devices: list[str], window: Window) -> Section[Timeline]:
        asks = self.services.pool.timeline(self.token, devices, window.since_ns, window.until_ns)
        return await attempt(asks, Text("Who held devices"))
