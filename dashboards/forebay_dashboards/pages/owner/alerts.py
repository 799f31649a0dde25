"""*Tenant*: where alerts of budgets go, what was alerted lately, and what did not arrive. *Operator* has the same of all tenants."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms.etags import number_in
from forebay_dashboards.http.handler import PageHandler
from forebay_dashboards.rows.billing import Channel
from forebay_dashboards.upstream.sections import attempt

TARGET_CHARACTERS_MAX = 2000
SHOWN_NS = 31 * 86_400 * 10**9
"""How old an alert is that the page still shows."""
ALERTS_SHOWN = 50

logger = logging.getLogger(__name__)


class AlertsDesk(PageHandler):
    """What both pages share: ``GET`` lists channels and alerts, ``POST`` adds, removes or retries a channel."""

    template: str

    @property
    def whose(self) -> str | None:
        """The tenant whose alerts it is about; None for all."""
        return None

    async def get(self) -> None:
        await self._show()

    async def post(self) -> None:
        typed = {"kind": self.get_body_argument("kind", "email"), "target": self.get_body_argument("target", "").strip()}
        typed["target"] = typed["target"][:TARGET_CHARACTERS_MAX]
        made: Channel | None = None
        try:
            if "add" in self.request.body_arguments:
                made, saved = await self._add(typed)
            else:
                saved = await self._settle()
        except (FormError, UpstreamRefused, UpstreamUnavailable) as error:
            self.set_status(HTTPStatus.SERVICE_UNAVAILABLE if isinstance(error, UpstreamUnavailable) else HTTPStatus.BAD_REQUEST)
            await self._show(problem=error.text, typed=typed)
            return
        logger.info("alert channels are changed", extra={"action": "channels_changed", "who": self.visitor.name, "tenant": self.whose})
        await self._show(saved=saved, made=made)

    async def _add(self, typed: dict[str, str]) -> tuple[Channel, Text]:
        if typed["kind"] not in ("email", "webhook", "slack"):
            raise FormError(Text("Choose how alerts go there."))
        if not typed["target"]:
            raise FormError(Text("Type the e-mail address or the URL that alerts are to go to."))
        made = await self.services.billing.add_channel(self.token, typed["kind"], typed["target"])
        return made, Text("Alerts go to %(target)s from now on.", target=made.target)

    async def _settle(self) -> Text:
        """Removes a channel, or sends again what it was not brought."""
        if "retry" in self.request.body_arguments:
            await self.services.billing.retry_channel(self.token, number_in(self.get_body_argument("retry")))
            return Text("What did not arrive is sent again.")
        await self.services.billing.remove_channel(self.token, number_in(self.get_body_argument("remove", "")))
        return Text("Alerts go there no more.")

    async def _show(
        self, problem: Text | None = None, saved: Text | None = None, typed: dict[str, str] | None = None, made: Channel | None = None
    ) -> None:
        billing, tenant = self.services.billing, self.whose
        channels, alerts = await asyncio.gather(
            attempt(billing.channels(self.token, tenant), Text("Channels of alerts")),
            attempt(billing.alerts(self.token, tenant, self.now_ns - SHOWN_NS), Text("Alerts")),
        )
        typed = typed or {"kind": "email", "target": ""}
        values = {"channels": channels, "alerts": alerts, "shown": ALERTS_SHOWN, "typed": typed, "made": made}
        self.show(self.template, problem=problem, saved=saved, **values)


class TenantAlertsPage(AlertsDesk):
    """``tenant/alerts``: an owner's own tenant."""

    view: View = "tenant"
    page = "tenant_alerts"
    template = "tenant_alerts.html"

    @property
    def whose(self) -> str | None:
        return self.visitor.tenant or ""
