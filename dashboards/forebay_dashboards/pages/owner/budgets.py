"""*Tenant*: budgets of the tenant, its members and their notebooks, each set and changed where it stands."""

from __future__ import annotations

import asyncio

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.forms.tenant_terms import TermForm, Terms
from forebay_dashboards.pages.terms import TermEdit, TermPart, TermsDesk
from forebay_dashboards.text.times import month_of
from forebay_dashboards.upstream.sections import attempt


class BudgetsDesk(TermsDesk):
    """What all handlers of the page share."""

    view: View = "tenant"

    def address(self, tenant: str) -> str:
        return "tenant/budgets"

    @property
    def tenant(self) -> str:
        """The visitor's own, which who may open the page has."""
        return self.visitor.tenant or ""

    async def terms(self, tenant: str) -> Terms:
        standing, budgets = await asyncio.gather(
            self.standing(tenant), attempt(self.services.billing.budgets(self.token, tenant), Text("Budgets"))
        )
        return Terms(tenant, month_of(self.now_ns).name, "owner", standing, budgets)

    async def show_page(self, terms: Terms, form: TermForm | None) -> None:
        members = await attempt(self.services.people.members(self.token, terms.tenant), Text("Members"))
        self.show_terms("tenant_budgets.html", terms, form=form, members=members)


class BudgetsPage(BudgetsDesk):
    """``GET tenant/budgets``, and its fragment ``tenant/budgets/terms``."""

    page = "tenant_budgets"

    async def get(self, part: str | None = None) -> None:
        terms = await self.terms(self.tenant)
        if part is None:
            await self.show_page(terms, None)
        else:
            self.show_terms("fragments/tenant_terms.html", terms, form=None)


class BudgetPage(BudgetsDesk, TermPart):
    """``GET tenant/budgets/terms/{key}``."""

    page = "tenant_budget"

    async def get(self, key: str) -> None:
        await self.show_part(self.tenant, key)


class BudgetEditPage(BudgetsDesk, TermEdit):
    """``GET`` and ``POST tenant/budgets/terms/{key}/edit``; ``?user=`` is whose a new one is."""

    page = "tenant_budget_edit"

    async def get(self, key: str) -> None:
        await self.show_opened(self.tenant, key)

    async def post(self, key: str) -> None:
        await self.save(self.tenant, key)
