"""*Operator*: one tenant: what it used, what it is held to and billed by, what it owes, and who belongs to it."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from urllib.parse import quote

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms.tenant_terms import TermForm, Terms
from forebay_dashboards.http.handler import Problem
from forebay_dashboards.pages.terms import TermEdit, TermPart, TermsDesk
from forebay_dashboards.rows.pool import Quota
from forebay_dashboards.tables.visible import visible_leases, visible_queue
from forebay_dashboards.text.times import month_of, recent_months
from forebay_dashboards.upstream.sections import attempt

PAGE = "operator_tenant.html"


class TenantDesk(TermsDesk):
    """What all handlers of a tenant's page share: what is known of it."""

    view: View = "operator"

    def address(self, tenant: str) -> str:
        return f"operator/tenant/{quote(tenant, safe='')}"

    async def terms(self, tenant: str) -> Terms:
        billing, token = self.services.billing, self.token
        standing, quota, plans, budgets = await asyncio.gather(
            self.standing(tenant),
            attempt(self.services.pool.quota(token, tenant, None), Text("The quota")),
            attempt(billing.plans(token, tenant), Text("Plans")),
            attempt(billing.budgets(token, tenant), Text("Budgets")),
        )
        found = Terms(tenant, month_of(self.now_ns).name, "operator", standing, budgets, quota, plans)
        if not await self._is_there(found):
            raise Problem(
                HTTPStatus.NOT_FOUND,
                Text("No such tenant"),
                Text(
                    "There is no tenant “%(name)s”: JupyterHub has no group tenant-%(name)s, and nothing was written down for it. "
                    "Add it to the hub's directory of people, or choose one from the table of tenants.",
                    name=tenant[:64],
                ),
            )
        return found

    async def _is_there(self, terms: Terms) -> bool:
        """What cannot be told right now counts as there: then the page says what is missing."""
        standing, quota = terms.standing.content, terms.quota.content
        if standing is None or standing.known or quota is None or quota.model_copy(update={"etag": None}) != Quota(tenant=terms.tenant):
            return True
        try:
            await self.services.people.members(self.token, terms.tenant)
        except UpstreamRefused as error:
            return error.status != HTTPStatus.NOT_FOUND
        except UpstreamUnavailable:
            return True
        return True

    async def show_page(self, terms: Terms, form: TermForm | None) -> None:
        chosen = self.month_asked()
        tenant = terms.tenant
        spend, owed, people = await asyncio.gather(self.spend_of(tenant, chosen), self.owed_by(tenant), self.people(tenant))
        months = {"months": recent_months(self.now_ns), "this_month": month_of(self.now_ns)}
        self.show_terms(PAGE, terms, form=form, saved=None, **months, **spend, **owed, **people, **self.present_of(tenant))

    def present_of(self, tenant: str) -> dict[str, object]:
        """What of the tenant runs and waits now."""
        pool_copy, view, visitor = self.services.feed.pool_copy, self.view, self.visitor
        running = [run for run in visible_leases(pool_copy, view, visitor, time.monotonic_ns()) if run.lease.tenant == tenant]
        return {"running": running, "waiting": [one for one in visible_queue(pool_copy, view, visitor) if one.tenant == tenant]}

    async def people(self, tenant: str) -> dict[str, object]:
        """The tenant's people and their roles, and who gets its alerts and reports."""
        channels, recipients, members = await asyncio.gather(
            attempt(self.services.billing.channels(self.token, tenant), Text("Channels of alerts")),
            attempt(self.services.billing.recipients(self.token, tenant), Text("Recipients of reports")),
            attempt(self.services.people.members(self.token, tenant), Text("Members")),
        )
        return {"channels": channels, "recipients": recipients, "people": members}


class OperatorTenantPage(TenantDesk):
    """``GET operator/tenant/{name}?month=``, and its fragments ``spend``, ``live``, ``terms``, ``owed`` and ``people``."""

    page = "operator_tenant"

    async def get(self, name: str, part: str | None = None) -> None:
        if part == "live":
            self.show("fragments/tenant_live.html", **self.present_of(name))
        elif part == "spend":
            self.show("fragments/tenant_spend.html", **await self.spend_of(name, self.month_asked()))
        elif part == "people":
            self.show("fragments/tenant_people.html", tenant=name, **await self.people(name))
        elif part == "owed":
            values = {"standings": await self.standing(name), "this_month": month_of(self.now_ns)}
            self.show("fragments/tenant_owed.html", tenant=name, **values, **await self.owed_by(name))
        elif part == "terms":
            self.show_terms("fragments/tenant_terms.html", await self.terms(name), form=None)
        else:
            await self.show_page(await self.terms(name), None)


class TermPage(TenantDesk, TermPart):
    """``GET operator/tenant/{name}/terms/{key}``."""

    page = "operator_term"

    async def get(self, name: str, key: str) -> None:
        await self.show_part(name, key)


class TermEditPage(TenantDesk, TermEdit):
    """``GET`` and ``POST operator/tenant/{name}/terms/{key}/edit``."""

    page = "operator_term_edit"

    async def get(self, name: str, key: str) -> None:
        await self.show_opened(name, key)

    async def post(self, name: str, key: str) -> None:
        await self.save(name, key)
