"""*Operator*: leases, the queue, sessions and devices, a page of each at a time."""

from __future__ import annotations

import time

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError
from forebay_dashboards.live_tables import TABLES, live_page
from forebay_dashboards.present import running
from forebay_dashboards.rows import Lease
from forebay_dashboards.tables import pace_ms, read_query
from forebay_dashboards.visitor import Visit, not_so

ARGUMENTS = ("q", "sort", "order", "page")


class TablePage(Visit):
    """``GET operator/{table}?q=&sort=&order=&page=``, and its fragment ``operator/{table}/rows``, which the page asks for again."""

    view: View = "operator"
    page = "operator_table"

    async def get(self, name: str, part: str | None = None) -> None:
        table = TABLES[name]
        try:
            query = read_query({key: self.get_query_argument(key, "") for key in ARGUMENTS}, table)
        except FormError as error:
            raise not_so(error) from None
        begun = time.process_time()
        found = live_page(name, self.services.feed.mirror, query)
        now_ns = time.monotonic_ns()
        rows = [running(seen, now_ns) if isinstance(seen.row, Lease) else seen.row for seen in found.rows]
        values = {"table": table, "found": found, "query": found.query, "rows": rows}
        template = "operator_table.html" if part is None else "fragments/table_rows.html"
        body = self.rendered(template, **values)
        self.set_header("X-Pace-Milliseconds", str(pace_ms(time.process_time() - begun)))
        self.finish(body)
