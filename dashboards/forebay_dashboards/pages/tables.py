"""*Operator*: leases, the queue, sessions and devices, a page of each at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError
from forebay_dashboards.http.handler import PageHandler, not_so
from forebay_dashboards.rows.pool import Lease
from forebay_dashboards.tables.activity import TABLES, live_page
from forebay_dashboards.tables.table import Page, Query, Table, pace_ms, read_query
from forebay_dashboards.tables.visible import running

ARGUMENTS = ("q", "sort", "order", "page")


class TableVisit(PageHandler):
    """What all pages with a long table share."""

    view: View = "operator"

    def asked(self, table: Table[Any]) -> Query:
        """What of the table the address asks for. Raises Problem."""
        try:
            return read_query({key: self.get_query_argument(key, "") for key in ARGUMENTS}, table)
        except FormError as error:
            raise not_so(error) from None

    def show_table(
        self, part: str | None, table: Table[Any], found: Page[Any], rows: Sequence[object], took: Callable[[], float],
        problems: Sequence[Text] = (),
    ) -> None:  # fmt: skip
        """Answers with the page, or its rows alone, and how soon they may be asked for again, by the seconds that they ``took``."""
        values = {"table": table, "found": found, "query": found.query, "rows": rows, "problems": problems}
        body = self.rendered("operator_table.html" if part is None else "fragments/table_rows.html", **values)
        self.set_header("X-Pace-Milliseconds", str(pace_ms(took())))
        self.finish(body)


class TablePage(TableVisit):
    """``GET operator/{table}?q=&sort=&order=&page=``, and its fragment ``operator/{table}/rows``, which the page asks for again."""

    page = "operator_table"

    async def get(self, name: str, part: str | None = None) -> None:
        table = TABLES[name]
        query = self.asked(table)
        begun = time.process_time()
        found = live_page(name, self.services.feed.pool_copy, query)
        now_ns = time.monotonic_ns()
        rows = [running(seen, now_ns) if isinstance(seen.row, Lease) else seen.row for seen in found.rows]
        self.show_table(part, table, found, rows, lambda: time.process_time() - begun)
