"""*Tenant*: the notebooks that its members share."""

from __future__ import annotations

from forebay_service.identity import TENANT
from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.http.handler import not_yours
from forebay_dashboards.pages.member.shared import SharedListPage


class TenantSharedPage(SharedListPage):
    """``GET tenant/shared``: those of everybody in the tenant."""

    view: View = "tenant"
    page = "tenant_shared"
    template = "tenant_shared.html"
    everybody = True

    async def _show(self, problem: Text | None, saved: Text | None) -> None:
        """Raises Problem for who only pays: the pool tells and changes no more for them."""
        if not self.visitor.may(TENANT):
            raise not_yours(Text("What members share is for the owners of their tenant."))
        await super()._show(problem, saved)
