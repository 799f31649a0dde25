"""*Tenant*: whom the report of each month is mailed to."""

from __future__ import annotations

import logging
from http import HTTPStatus

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms.etags import number_in
from forebay_dashboards.http.handler import PageHandler
from forebay_dashboards.upstream.sections import attempt

ADDRESS_CHARACTERS_MAX = 320

logger = logging.getLogger(__name__)


class ReportsPage(PageHandler):
    """``GET tenant/reports`` lists the recipients, ``POST`` adds or removes one."""

    view: View = "tenant"
    page = "tenant_reports"

    async def get(self) -> None:
        await self._show(None, None)

    async def post(self) -> None:
        target = self.get_body_argument("target", "").strip()[:ADDRESS_CHARACTERS_MAX]
        try:
            saved = await (self._remove() if "remove" in self.request.body_arguments else self._add(target))
        except (FormError, UpstreamRefused, UpstreamUnavailable) as error:
            refused = isinstance(error, (FormError, UpstreamRefused))
            self.set_status(HTTPStatus.BAD_REQUEST if refused else HTTPStatus.SERVICE_UNAVAILABLE)
            await self._show(error.text, None, target)
            return
        fields = {"action": "report_recipients_changed", "who": self.visitor.name, "tenant": self.visitor.tenant}
        logger.info("recipients of reports are changed", extra=fields)
        await self._show(None, saved)

    async def _add(self, target: str) -> Text:
        if not target:
            raise FormError(Text("Type the e-mail address that reports are to go to."))
        await self.services.billing.add_recipient(self.token, target)
        return Text("%(address)s gets the report of this month, a day after its end, and those of later ones.", address=target)

    async def _remove(self) -> Text:
        await self.services.billing.remove_recipient(self.token, number_in(self.get_body_argument("remove", "")))
        return Text("It gets no more reports.")

    async def _show(self, problem: Text | None, saved: Text | None, target: str = "") -> None:
        recipients = await attempt(self.services.billing.recipients(self.token, self.visitor.tenant), Text("Recipients"))
        self.show("tenant_reports.html", recipients=recipients, problem=problem, saved=saved, target=target)
