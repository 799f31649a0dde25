"""*Tenant*: what is owed and what is ahead, what to do next, and whom invoices are made out to."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms.etags import STALE, expecting, overtaken, stamp_of
from forebay_dashboards.forms.profile import FIELDS, ProfileForm, filled, judge, refused
from forebay_dashboards.pages.my_tenant import TenantFacts
from forebay_dashboards.tables.next_steps import next_steps
from forebay_dashboards.text.times import month_of, recent_months
from forebay_dashboards.upstream.sections import attempt

FIELD_CHARACTERS_MAX = 512

logger = logging.getLogger(__name__)


class BillsPage(TenantFacts):
    """``GET tenant/bills``; ``POST`` saves whom invoices are made out to, or goes to Stripe's portal."""

    view: View = "tenant"
    page = "tenant_bills"

    async def get(self) -> None:
        await self._show(None)

    async def post(self) -> None:
        if "portal" in self.request.body_arguments:
            await self._go_to_portal()
            return
        typed = {name: self.get_body_argument(name, "")[:FIELD_CHARACTERS_MAX] for name in FIELDS}
        stamp = self.get_body_argument("stamp", "")
        form, body = judge(typed, stamp)
        if form.problems:
            self.set_status(HTTPStatus.BAD_REQUEST)
            await self._show(form)
            return
        try:
            await self.services.billing.set_profile(self.token, self.visitor.tenant or "", body, expecting(stamp))
        except (UpstreamRefused, UpstreamUnavailable) as error:
            self.set_status(HTTPStatus(error.status) if isinstance(error, UpstreamRefused) else HTTPStatus.SERVICE_UNAVAILABLE)
            await self._show(await self._renewed(form) if overtaken(error) else refused(form, error.text))
            return
        logger.info("a profile is changed", extra={"action": "owner_profile_set", "who": self.visitor.name})
        await self._show(None, Text("It is saved, and holds for invoices from now on."))

    async def _renewed(self, form: ProfileForm) -> ProfileForm:
        """What was typed, over what somebody else saved meanwhile: saved again, it is meant."""
        found = await attempt(self.services.billing.profile(self.token, self.visitor.tenant or ""), Text("The profile"))
        stamp = "" if found.content is None else stamp_of(found.content.etag)
        return ProfileForm(form.values, stamp, {"form": found.problem or STALE})

    async def _go_to_portal(self) -> None:
        try:
            address = await self.services.billing.portal(self.token)
        except (UpstreamRefused, UpstreamUnavailable) as error:
            self.set_status(HTTPStatus(error.status) if isinstance(error, UpstreamRefused) else HTTPStatus.SERVICE_UNAVAILABLE)
            await self._show(None, problem=error.text)
            return
        self.redirect(address, status=HTTPStatus.SEE_OTHER)

    async def _show(self, form: ProfileForm | None, saved: Text | None = None, problem: Text | None = None) -> None:
        billing, tenant = self.services.billing, self.visitor.tenant or ""
        owed, profile, payments = await asyncio.gather(
            self.owed_by(tenant),
            attempt(billing.profile(self.token, tenant), Text("Whom invoices are made out to")),
            attempt(billing.payment_invoices(self.token, tenant), Text("Where invoices are paid")),
        )
        pay_at = {one.number: one.url for one in payments.content or () if one.url}
        form = form or (None if profile.content is None else filled(profile.content))
        months = {"months": recent_months(self.now_ns), "this_month": month_of(self.now_ns)}
        values = {"form": form, "profile": profile, "payments": payments, "saved": saved, "problem": problem}
        steps = next_steps(owed["invoices"].content, owed["credits"].content, owed["budgets"].content, profile.content, pay_at, self.now_ns)
        self.show("tenant_bills.html", steps=steps, **values, **owed, **months)
