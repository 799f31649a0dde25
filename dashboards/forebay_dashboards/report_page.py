"""*Tenant*: whom the report of each month is mailed to."""

from __future__ import annotations

import logging
from http import HTTPStatus

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.sections import attempt
from forebay_dashboards.visitor import Visit

ADDRESS_CHARACTERS_MAX = 320

logger = logging.getLogger(__name__)


class ReportsPage(Visit):
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
            await self._show(str(error), None, target)
            return
        logger.info("action=report_recipients_changed who=%s tenant=%s", self.visitor.name, self.visitor.tenant)
        await self._show(None, saved)

    async def _add(self, target: str) -> str:
        if not target:
            raise FormError("Type the e-mail address that reports are to go to.")
        await self.services.billing.add_recipient(self.token, target)
        return f"{target} gets the report of this month, a day after its end, and those of later ones."

    async def _remove(self) -> str:
        number = self.get_body_argument("remove", "")
        if not (number.isascii() and number.isdigit() and len(number) < 19):
            raise FormError("Choose a recipient from the list.")
        await self.services.billing.remove_recipient(self.token, int(number))
        return "It gets no more reports."

    async def _show(self, problem: str | None, saved: str | None, target: str = "") -> None:
        recipients = await attempt(self.services.billing.recipients(self.token, self.visitor.tenant), "Recipients")
        self.show("tenant_reports.html", recipients=recipients, problem=problem, saved=saved, target=target)
