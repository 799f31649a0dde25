"""*Operator*: the fair share: what tenants are entitled to, and what they used."""

from __future__ import annotations

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.http.handler import PageHandler
from forebay_dashboards.tables.shares import shares
from forebay_dashboards.upstream.sections import attempt


class SharesPage(PageHandler):
    """``GET operator/shares``."""

    view: View = "operator"
    page = "operator_shares"

    async def get(self) -> None:
        rows = await attempt(self.services.pool.shares(self.token), Text("Shares"))
        self.show("operator_shares.html", shares=shares(rows.content or ()), problem=rows.problem)
