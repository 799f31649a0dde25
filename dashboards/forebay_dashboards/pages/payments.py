"""*Operator*: how payments stand: what is on its way to Stripe, what did not get there, and whether Stripe has what we have."""

from __future__ import annotations

import logging
from http import HTTPStatus

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.http.handler import PageHandler
from forebay_dashboards.rows.billing import Reconciliation
from forebay_dashboards.text.times import month_of
from forebay_dashboards.upstream.sections import Section, attempt

REASON_CHARACTERS_MAX = 200
CHOICES = ("retry", "skip")

logger = logging.getLogger(__name__)


class PaymentsPage(PageHandler):
    """``GET operator/payments?compare=1`` shows deliveries to Stripe, and compares this month; ``POST`` settles a dead letter."""

    view: View = "operator"
    page = "operator_payments"

    async def get(self) -> None:
        await self._show(None, None, compare=bool(self.get_query_argument("compare", "")))

    async def post(self) -> None:
        try:
            number, choice, reason = self._typed()
            await self.services.billing.settle_dead_letter(self.token, number, choice, reason)
        except (FormError, UpstreamRefused, UpstreamUnavailable) as error:
            refused = isinstance(error, (FormError, UpstreamRefused))
            self.set_status(HTTPStatus.BAD_REQUEST if refused else HTTPStatus.SERVICE_UNAVAILABLE)
            await self._show(error.text, None)
            return
        fields = {"action": "dead_letter_settled", "who": self.visitor.name, "row": number, "choice": choice}
        logger.info("a dead letter is settled", extra=fields)
        await self._show(None, _settled(number, choice))

    def _typed(self) -> tuple[int, str, str]:
        number, choice = self.get_body_argument("id", ""), self.get_body_argument("choice", "")
        reason = self.get_body_argument("reason", "").strip()[:REASON_CHARACTERS_MAX]
        if not (number.isascii() and number.isdigit() and len(number) < 19) or choice not in CHOICES:
            raise FormError(Text("Choose a delivery from the list, and whether to send it again or to give it up."))
        if not reason:
            raise FormError(Text("Say why; it stands in the audit."))
        return int(number), choice, reason

    async def _show(self, problem: Text | None, saved: Text | None, compare: bool = False) -> None:
        outbox = await attempt(self.services.billing.outbox(self.token, "dead"), Text("Deliveries to Stripe"))
        compared: Section[Reconciliation] | None = None
        if compare:
            month = month_of(self.now_ns)
            asked = self.services.billing.reconciliation(self.token, month.since_ns, min(month.until_ns, self.now_ns))
            compared = await attempt(asked, Text("The comparison with Stripe"))
        self.show("operator_payments.html", outbox=outbox, compared=compared, problem=problem, saved=saved)


def _settled(number: int, choice: str) -> Text:
    if choice == "retry":
        return Text("Delivery %(number)s is sent again.", number=number)
    return Text("Delivery %(number)s is given up.", number=number)
