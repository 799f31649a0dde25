"""*Operator*: the price list, tenants' plans, what they would have come to, and who changed what."""

from __future__ import annotations

import logging

from pydantic import ValidationError

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError, MoneyError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.plan_form import TypedPlan
from forebay_dashboards.rows import Preview, PriceChanges
from forebay_dashboards.sections import attempt
from forebay_dashboards.visitor import Visit, not_so

LIST_CHARACTERS_MAX = 60_000
"""What fits a form; a longer list is applied by the command line."""

logger = logging.getLogger(__name__)


class PriceListPage(Visit):
    """``GET operator/price-list`` shows the list, ``POST`` compares, previews or applies what was typed."""

    view: View = "operator"
    page = "operator_price_list"

    async def get(self) -> None:
        found = await attempt(self.services.billing.price_list(self.token), "Prices")
        self._show(found.content or "", found.problem)

    async def post(self) -> None:
        text = self.get_body_argument("list", "", strip=False).replace("\r\n", "\n")
        action, month = self.get_body_argument("action", "compare"), self.get_body_argument("month", "")
        if len(text) > LIST_CHARACTERS_MAX:
            raise not_so(FormError(f"The list is longer than {LIST_CHARACTERS_MAX:,} characters; apply it with forebay admin prices."))
        billing, changes, preview = self.services.billing, None, None
        try:
            if action == "apply":
                changes = await billing.apply_price_list(self.token, text)
                self.services.audience.tell_all("prices")
                logger.info("action=price_list_applied who=%s changes=%d", self.visitor.name, len(changes.changes))
                text = await billing.price_list(self.token)
            elif action == "preview":
                preview = await billing.preview(self.token, {"price_list": text, "month": month or None})
            else:
                changes = await billing.compare_price_list(self.token, text)
        except (UpstreamRefused, UpstreamUnavailable) as error:
            self._show(text, str(error))
            return
        self._show(text, None, changes, preview, applied=action == "apply", month=month)

    def _show(
        self,
        text: str,
        problem: str | None,
        changes: PriceChanges | None = None,
        preview: Preview | None = None,
        applied: bool = False,
        month: str = "",
    ) -> None:
        values = {"changes": changes, "preview": preview, "applied": applied, "month": month[:16]}
        self.show("operator_price_list.html", text=text, problem=problem, **values)


class PlansPage(Visit):
    """``GET operator/plans`` shows all plans and a form, ``POST`` previews or saves one."""

    view: View = "operator"
    page = "operator_plans"

    async def get(self) -> None:
        await self._show({}, None)

    async def post(self) -> None:
        arguments = {name: self.get_body_argument(name) for name in self.request.body_arguments if name != "_xsrf"}
        try:
            typed = TypedPlan.model_validate(arguments)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            raise not_so(FormError(f"The field {'.'.join(map(str, first['loc']))} cannot be used: {first['msg']}.")) from None
        billing = self.services.billing
        try:
            terms = typed.terms()
            if typed.action == "preview":
                asked: dict[str, object] = {"plans": {typed.tenant: terms}, "tenant": typed.tenant}
                await self._show(arguments, None, await billing.preview(self.token, asked))
                return
            body = {**terms, "valid_from": typed.valid_from.strip(), "new": bool(typed.new)}
            plan = await billing.set_plan(self.token, typed.tenant, body)
        except (FormError, MoneyError, UpstreamRefused, UpstreamUnavailable) as error:
            await self._show(arguments, str(error))
            return
        logger.info("action=plan_changed who=%s tenant=%s version=%d", self.visitor.name, plan.tenant, plan.version)
        await self._show({}, None, saved=f"The plan of {plan.tenant} from {plan.valid_from} is saved.")

    async def _show(self, typed: dict[str, str], problem: str | None, preview: Preview | None = None, saved: str | None = None) -> None:
        plans = await attempt(self.services.billing.plans(self.token), "Plans")
        newest_first = sorted(plans.content or (), key=lambda plan: (plan.tenant, -plan.version))
        self.show(
            "operator_plans.html", typed=typed, problem=problem or plans.problem, preview=preview, saved=saved, plans=newest_first
        )


class AuditTrailPage(Visit):
    """``GET operator/audit?cursor=``: who changed what at billing, and what was refused."""

    view: View = "operator"
    page = "operator_audit"

    async def get(self) -> None:
        cursor = self.get_query_argument("cursor", "")[:20] or None
        found = await attempt(self.services.billing.audit(self.token, cursor), "Entries")
        entries = found.content.entries if found.content else ()
        self.show("operator_audit.html", entries=entries, next=found.content.next if found.content else None, problem=found.problem)
